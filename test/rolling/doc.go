// Package rolling tests a rolling deploy: workers of this version and of a made-up next one run
// side by side, on one schema that is migrated meanwhile. The storm does the same under kills (make
// storm-mixed).
//
// The next version is this code with one more migration (testdata/1_made_up.sql), added by go
// build's -overlay. So the drill covers all that a real migration needs: the order of versions, the
// lock, the one transaction, and the check that code accepts its own version and the next.
package rolling
