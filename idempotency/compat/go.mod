module github.com/onlyonce/onlyonce/idempotency/compat

go 1.26.0

replace github.com/onlyonce/onlyonce => ../..

require (
	github.com/dunglas/httpsfv v1.1.2
	github.com/onlyonce/onlyonce v0.0.0
	pgregory.net/rapid v1.3.0
)

require github.com/cenkalti/backoff/v4 v4.3.0 // indirect
