// Package rolling tests a rolling deploy: workers of the version before and of this one side by side, on one schema
// that is migrated under them.
//
// testdata holds the source of a worker of the version before as an archive, because a clone may have no history
// (archive.sh makes it). The test builds it as a module of its own, and this version's worker beside it.
package rolling
