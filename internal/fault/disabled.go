//go:build !onlyonce_fault

package fault

// Compiled says that this program has failpoints.
const Compiled = false

// Point does nothing in a production build.
func Point(string) error { return nil }
