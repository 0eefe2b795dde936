package migrations_test

import (
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/migrations"
)

// A team with a migration tool of its own copies the SQL. Print writes every version above the
// given one, for example 0 for a new database.
func ExamplePrint() {
	var sql strings.Builder
	if err := migrations.Print(&sql, 0); err != nil {
		fmt.Println(err)
	}
	for line := range strings.Lines(sql.String()) {
		if strings.Contains(line, "insert into onlyonce.schema_version") {
			fmt.Print(line)
		}
	}
	// Output:
	// insert into onlyonce.schema_version (version) values (1);
}
