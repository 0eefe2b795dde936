module github.com/onlyonce/onlyonce/cmd/idemcheck

go 1.26.0
