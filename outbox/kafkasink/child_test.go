package kafkasink_test

const childEnv = "ONLYONCE_KAFKASINK_CHILD"

func childMain() int { return 2 }
