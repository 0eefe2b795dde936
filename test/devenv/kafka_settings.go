package devenv

import (
	"maps"
	"strconv"
)

// brokerSettings are the settings of broker number id of n, each of which is a
// controller too, without its addresses and directory.
func brokerSettings(id, n int, changes map[string]string) map[string]string {
	// With three, a record that was acknowledged by all (acks=all) is on two disks
	// at least, so that killing any one broker loses nothing.
	replicas := strconv.Itoa(n)
	inSync := strconv.Itoa((n + 1) / 2)
	s := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(id),
		"controller.listener.names":      "CONTROLLER",
		"inter.broker.listener.name":     "PLAINTEXT",
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		// If topics were created automatically, a test with a typing error in a topic's name could
		// pass.
		"auto.create.topics.enable":  "false",
		"default.replication.factor": replicas,
		"min.insync.replicas":        inSync,
		// Fewer partitions than the default 50 because each is a directory with
		// open files, made at the first use.
		"offsets.topic.replication.factor":         replicas,
		"offsets.topic.num.partitions":             "4",
		"transaction.state.log.replication.factor": replicas,
		"transaction.state.log.min.isr":            inSync,
		"transaction.state.log.num.partitions":     "4",
		// The default three seconds of waiting for more members come before
		// every first join.
		"group.initial.rebalance.delay.ms": "0",
		// Tests of lost members wait for a session to end; the default least
		// is six seconds.
		"group.min.session.timeout.ms": "1000",
		// After a SIGKILL the broker may register again only when its session
		// has ended: with the default nine seconds a restart takes twelve. Much
		// less, and a busy machine of two cores would fence a live broker.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "500",
	}
	maps.Copy(s, changes)
	return s
}
