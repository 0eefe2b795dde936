package codec

import "github.com/jackc/pgx/v5/pgtype"

// UUIDs is an argument for uuid[], and Bigints one for bigint[]. Their elements are pointers: pgx takes those as they are,
// where it would reach a slice of values by reflection and move each one to the heap. Both are types that pgx knows without
// asking the server.
func UUIDs(values [][16]byte) pgtype.FlatArray[*pgtype.UUID] {
	elements, array := make([]pgtype.UUID, len(values)), make(pgtype.FlatArray[*pgtype.UUID], len(values))
	for i, v := range values {
		elements[i] = pgtype.UUID{Bytes: v, Valid: true}
		array[i] = &elements[i]
	}
	return array
}

// Bigints is an argument for bigint[], see [UUIDs].
func Bigints(values []int64) pgtype.FlatArray[*pgtype.Int8] {
	elements, array := make([]pgtype.Int8, len(values)), make(pgtype.FlatArray[*pgtype.Int8], len(values))
	for i, v := range values {
		elements[i] = pgtype.Int8{Int64: v, Valid: true}
		array[i] = &elements[i]
	}
	return array
}
