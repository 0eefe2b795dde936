package main

// seamsRules are repairs that histories of lifetimes and outcomes must miss if they are taken out:
// one of the histories must end in a breach.
var seamsRules = []mutant{
	{rule: "H31 seams: record with an open call", in: schema, decl: "function onlyonce.has_expired",
		old: "look_at is not null or", new: "", pkg: "test/seams", test: "TestH31Histories"},
	{rule: "O6 seams: 410 of our own layer", in: "internal/outcome", decl: "isAnswerNotKept",
		old: "status != http.StatusGone", new: "status > 0", pkg: "test/seams", test: "TestO6Histories"},
}
