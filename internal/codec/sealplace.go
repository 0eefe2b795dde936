package codec

// SealPlace names the place that a sealed value is stored in, and is what the value is sealed under
// (package seal): the row that it belongs to, which of the row's values it is ("answer", "step",
// "input", "result"), and, where there are several of these, the name of the one. A value that is
// moved to another row, another column or another step does not open there (H24).
func SealPlace(id [16]byte, value, name string) [16]byte {
	sum := Hash("onlyonce/sealed/1", string(id[:]), value, name)
	return [16]byte(sum[:16])
}
