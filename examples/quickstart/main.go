// Quickstart is a service that applies orders from Kafka and charges for them, under attack.
//
//	go run ./examples/quickstart
//
// orders.go is what a user of onlyonce writes. Package test/demo/quickstart produces the orders,
// kills the service's processes and counts.
package main

import "github.com/onlyonce/onlyonce/test/demo/quickstart"

func main() { quickstart.Main(service) }

var service = quickstart.Service{Schema: tableSQL, Serve: serve}
