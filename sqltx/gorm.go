package sqltx

import (
	"fmt"
	"reflect"

	"github.com/onlyonce/onlyonce/dedupe"
)

// GORM returns the transaction of a *gorm.DB, for [Claim] and [Enqueue]:
//
//	err := db.Transaction(func(g *gorm.DB) error {
//		tx, err := sqltx.GORM(g)
//		if err != nil {
//			return err
//		}
//		...
//
// Outside of Transaction and Begin it returns an error that wraps [dedupe.ErrNoTransaction]. The
// parameter does not have GORM's type, so this module does not require GORM.
func GORM(g any) (StdTx, error) {
	pool := field(field(reflect.ValueOf(g), "Statement"), "ConnPool")
	if !pool.IsValid() {
		return nil, fmt.Errorf("sqltx: GORM: %w: %T is not a *gorm.DB in use", dedupe.ErrNoTransaction, g)
	}
	tx, ok := pool.Interface().(StdTx)
	if !ok {
		return nil, fmt.Errorf("sqltx: GORM: %w: call it in db.Transaction, with the *gorm.DB that the function gets", dedupe.ErrNoTransaction)
	}
	return tx, nil
}

// field is a field of a struct or of a pointer to one, and not valid if there is none.
func field(of reflect.Value, name string) (v reflect.Value) {
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return v
	}
	if v = of.FieldByName(name); v.IsValid() && !v.CanInterface() {
		return reflect.Value{}
	}
	return v
}
