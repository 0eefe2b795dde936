package main

// sealRules are mutants of sealed values, in their places: rules H24 and S.
var sealRules = []mutant{
	{rule: "H24 step", in: "internal/codec", decl: "SealPlace",
		old: "string(id[:]), value, name", new: "string(id[:]), value", pkg: "idempotency", test: "TestH24SealedInItsPlace"},
	{rule: "H24 column", in: "internal/codec", decl: "SealPlace",
		old: "string(id[:]), value", new: "string(id[:])", pkg: "idempotency", test: "TestH24OperationsAreSealedInTheirPlaces"},
	{rule: "H24 row", in: "internal/codec", decl: "SealPlace",
		old: "string(id[:]),", new: "", pkg: "idempotency", test: "TestH16AnswersAreSealed"},
	{rule: "H24 bound to its place", in: "seal", decl: "associatedData",
		old:  "append(append(make([]byte, 0, headerSize+len(key)), sealed[:headerSize]...), key[:]...)",
		new:  "append(make([]byte, 0, headerSize+len(key)), sealed[:headerSize]...)",
		test: "TestRefusesWhatWasChanged"},
	{rule: "H24 head is authenticated", in: "seal", decl: "associatedData",
		old: "append(make([]byte, 0, headerSize+len(key)), sealed[:headerSize]...)", new: "make([]byte, 0, headerSize+len(key))",
		test: "TestHeadIsAuthenticated"},
	{rule: "H24 nonce", in: "seal", decl: "(*Sealer).Seal",
		old: "rand.Read(nonce)", new: "rand.Read(nonce[:0])", test: "TestNoncesDiffer"},
	{rule: "H24 short nonce", in: "seal", decl: "(*Sealer).Seal",
		old: "rand.Read(nonce)", new: "rand.Read(nonce[:1])", test: "TestNoncesDiffer"},
	{rule: "H24 key by its id", in: "seal", decl: "(*Sealer).Open",
		old: "s.keys[id]", new: "s.keys[s.current]", test: "TestRotation"},
	{rule: "H24 current key", in: "seal", decl: "(*Sealer).Seal",
		old: "out[1:], s.current", new: "out[1:], 1", test: "TestRotation"},
}
