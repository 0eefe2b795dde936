package main

// allKinds are the kinds of histories. later adds those that breach, and are to be mended later:
// the log is cut off and written anew below what is done above the position, and cursor adopt -at
// leads to the same halt (C7, C8).
func allKinds(later bool) []*kind {
	kinds := []*kind{
		{name: "calls", weight: 6, draw: drawCalls},
		{name: "requests", weight: 6, draw: drawRequests},
		{name: "operations", weight: 3, draw: drawOperations},
		{name: "steps", weight: 2, draw: drawSteps},
		{name: "webhooks", weight: 3, draw: drawWebhooks},
		{name: "partly-signed", weight: 1, draw: drawPartly},
		{name: "messages", weight: 4, draw: drawMessages},
		{name: "queues", weight: 2, draw: drawQueues},
	}
	if later {
		kinds = append(kinds, &kind{name: "other-log", weight: 1, draw: drawOtherLog})
	}
	return kinds
}
