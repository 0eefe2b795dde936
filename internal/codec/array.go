package codec

import "github.com/jackc/pgx/v5/pgtype"

// Array is an argument for an array of n elements. They are pointers: pgx takes those as they are,
// where it would reach a slice of values by reflection and move each one to the heap. T is one of
// pgtype's own types, which pgx knows without asking the server.
func Array[T any](n int, at func(i int) T) pgtype.FlatArray[*T] {
	elements := make([]T, n)
	array := make(pgtype.FlatArray[*T], n)
	for i := range elements {
		elements[i] = at(i)
		array[i] = &elements[i]
	}
	return array
}

// UUID is an argument for uuid. For a uuid.UUID pgx would make a text and read it again, or,
// without prepared statements, ask the server for types.
func UUID(value [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: value, Valid: true} }

// UUIDs is an argument for uuid[], see [Array].
func UUIDs(values [][16]byte) pgtype.FlatArray[*pgtype.UUID] {
	return Array(len(values), func(i int) pgtype.UUID { return UUID(values[i]) })
}

// Bigints is an argument for bigint[], see [Array].
func Bigints(values []int64) pgtype.FlatArray[*pgtype.Int8] {
	return Array(len(values), func(i int) pgtype.Int8 { return pgtype.Int8{Int64: values[i], Valid: true} })
}
