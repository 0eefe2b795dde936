package webhook_test

const (
	childDB   = "ONLYONCE_TEST_CHILD_DB"
	childMode = "ONLYONCE_TEST_CHILD_MODE"
)

func child(string, string) error { return nil }
