// Package api locks the library's public surface: a .txt file for each public package has a line
// for each exported name, field and method. The test names each line that changed, and
//
//	go test ./test/api -update
//
// writes the files, so that a commit shows what it does to the surface. Before the first release
// that is all. From then on a changed line needs one in CHANGELOG.md under Unreleased, and a line
// that is gone since the last tag needs a new major version.
package api
