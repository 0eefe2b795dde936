//go:build !onlyonce_fault

package fault

// Point does nothing in a production build.
func Point(string) error { return nil }
