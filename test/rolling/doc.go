// Package rolling tests a rolling deploy: workers of the version before and of this one side by side, on one schema
// that is migrated under them.
//
// Nothing is released, so there is no version before: this version's worker runs on both sides, and the next schema is made up.
// From the first release on, testdata holds the source of the released worker as an archive, because a clone may have no history
// (archive.sh makes it). The test then builds it as a module of its own, and this version's worker beside it.
package rolling
