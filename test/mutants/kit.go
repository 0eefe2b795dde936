package main

// kitRules are rules that a user's test with onlyoncetest misses if they are taken out of the
// engine: a sound program must then have a verdict.
var kitRules = []mutant{
	{rule: "T2 kit: claim does not raise", file: schemaInbox,
		old: "  case cur\n    EACH_SLOT{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1;}", new: "  case cur\n    EACH_SLOT{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1 on conflict do nothing;}",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint"},
	{rule: "T2 kit: fence does not raise", file: schemaConsumer, old: fence, new: open,
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions"},
}
