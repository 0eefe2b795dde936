package main

import "testing"

// A tenant moves from one database to another by the commands that docs/scaling.md names.
func TestMoveATenant(t *testing.T) {
	t.Parallel()
	a := newFixture(t)
	b := newFixture(t)
	a.run("place", "list").want(t, statusGood, "No places.")
	leave := []string{"place", "leave", "-place", "acme", "-to", "b", "-reason", "OPS-40", "-yes"}
	a.run(leave...).want(t, statusEnvironment, "does not live in this database")
	a.run("place", "adopt", "-place", "acme", "-reason", "first", "-yes").want(t, statusGood, "acme: not known here -> here")
	a.exec(`select onlyonce.claim(array[onlyonce.key('acme', 's', '1')], '{0}')`)
	a.exec(`insert into onlyonce.operations (id, record_id, topic, tenant, principal, name, keep)
		values (gen_random_uuid(), gen_random_uuid(), 'operations', 'acme', '', 'export', '1 day')`)
	a.run(leave...).want(t, statusGood, "here -> leaving", "1 operation,", "0 events", "Run the command again")
	a.run("place", "list", "-state", "leaving").want(t, statusGood, "acme")
	a.exec(`update onlyonce.places set changed_at = now() - interval '2 hours'`)
	a.run("doctor").want(t, statusGood, "acme has been leaving for b")
	a.exec(`delete from onlyonce.operations`)
	a.run(leave...).want(t, statusGood, "leaving -> left", "onlyonce place adopt -from URL -as b")
	a.run("place", "list", "-json").want(t, statusGood, `"state":"left"`, `"other":"b"`)

	adopt := func(more ...string) result {
		return b.run(append([]string{"place", "adopt", "-place", "acme", "-from", a.url, "-reason", "OPS-40", "-yes"}, more...)...)
	}
	adopt("-without-keys").want(t, statusEnvironment, "-as")
	adopt("-as", "b").want(t, statusEnvironment, "one of -standard-keys and -without-keys")
	adopt("-as", "b", "-without-keys", "-late").want(t, statusEnvironment, "only with -standard-keys")
	adopt("-as", "c", "-without-keys").want(t, statusFailed, "and not for c")
	adopt("-as", "b", "-standard-keys").want(t, statusGood, "not known here -> here", "1 key came along", "it lives here")
	b.run("place", "adopt", "-place", "acme", "-late", "-reason", "why", "-yes").want(t, statusEnvironment, "only with -from")
	b.run("place", "list", "-place", "acme").want(t, statusGood, "here")
}
