package main

// drawsLater says whether histories are drawn that breach and are to be mended later. Each place
// that asks has the reason.
var drawsLater bool

// allKinds are the kinds of histories.
func allKinds() []*kind {
	return []*kind{
		{name: "calls", weight: 6, draw: drawCalls},
		{name: "requests", weight: 6, draw: drawRequests},
		{name: "operations", weight: 3, draw: drawOperations},
		{name: "steps", weight: 2, draw: drawSteps},
		{name: "webhooks", weight: 3, draw: drawWebhooks},
		{name: "messages", weight: 4, draw: drawMessages},
		{name: "queues", weight: 2, draw: drawQueues},
	}
}
