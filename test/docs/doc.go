// Package docs checks README.md and the guide: each block of Go is the text of a file that
// compiles, each block of SQL runs, and each line of a block of shell is run by a test here or is
// one of CI's own commands. A block that no test checks is marked as text.
package docs
