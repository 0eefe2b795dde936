package main

// consoleRules are mutants of the console, and of acts on all that a filter matches: rules U.
var consoleRules = []mutant{
	{rule: "U1 a viewer's POST is carried out", in: "ui", decl: "(*console).route",
		old: "v.access < r.needs", new: "v.access < r.needs && false", test: "TestU1ViewersChangeNothing"},
	{rule: "U1 a form of another origin is carried out", in: "ui", decl: "(*console).ServeHTTP",
		old: "if err := c.guard.Check(r); err != nil {", new: "if err := c.guard.Check(r); err != nil && false {", test: "TestU1OtherOriginsAreRefused"},
	{rule: "U1 an act that was not shown", in: "ui", decl: "(*visit).carryOut",
		old: `shown == ""`, new: "false", test: "TestU1Acts"},
	{rule: "U1 a bulk act without a reason begins", in: "ui", decl: "(*visit).startBulk",
		old: `reason == ""`, new: "false", test: "TestU3Bulk"},
	{rule: "U2 payloads are shown to all", in: "ui", decl: "(*visit).reveals",
		old: "!= nil &&", new: "== nil ||", test: "TestU2Pages"},
	{rule: "U1 a token opens twice", in: "ui", decl: "(*Token).use",
		old: `t.token = ""`, new: "", test: "TestTokenIsUsedOnce"},
	{rule: "U3 what was parked after the dry run is changed too", in: "ops", decl: "all",
		old: "q.upTo = &in.Shown.UpTo", new: "", pkg: "ui", test: "TestU3Bulk"},
	{rule: "U3 what changed since the dry run is not counted", in: "ops", decl: "all",
		old: "in.Shown.Count-len(ids)", new: "len(ids)-in.Shown.Count", pkg: "ui", test: "TestU3Bulk"},
	{rule: "U3 each transaction writes an audit row of its own", in: "ops", decl: "(*bulkSelection).audit",
		old: "total.AuditID; id == 0", new: "total.AuditID; true", pkg: "ui", test: "TestU3Bulk"},
}
