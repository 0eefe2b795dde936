package main

// allKinds are the kinds of histories.
func allKinds() []*kind {
	return []*kind{
		{name: "calls", weight: 6, draw: drawCalls},
		{name: "requests", weight: 6, draw: drawRequests},
		{name: "operations", weight: 3, draw: drawOperations},
		{name: "steps", weight: 2, draw: drawSteps},
		{name: "webhooks", weight: 3, draw: drawWebhooks},
		{name: "partly-signed", weight: 1, draw: drawPartly},
		{name: "messages", weight: 4, draw: drawMessages},
		{name: "queues", weight: 2, draw: drawQueues},
		{name: "other-log", weight: 1, draw: drawOtherLog},
	}
}
