package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// envBrokers names Kafka's brokers if -brokers is not given.
const envBrokers = "ONLYONCE_KAFKA_BROKERS"

// consumedTopicsSQL lists the topics of cursors in use that are no streams of the event log: those
// are restored with their readers.
const consumedTopicsSQL = `
select distinct c.topic from onlyonce.cursors c
 where c.retired_at is null and not exists (select from onlyonce.streams s where s.topic = c.topic) order by 1`

// examineRetention compares how long Kafka keeps the topics that are consumed with how far back a
// restore may reach, and adds its findings.
func examineRetention(
	ctx context.Context,
	db ops.DB,
	brokers *kafka.Client,
	within time.Duration,
	r *ops.Examination,
) error {
	topics, err := reports.Look(ctx, db, func(tx pgx.Tx) ([]string, error) {
		return reports.Texts(ctx, tx, consumedTopicsSQL)
	})
	if err != nil || len(topics) == 0 {
		return err
	}
	req := &kafka.DescribeConfigsRequest{}
	for _, topic := range topics {
		req.Resources = append(req.Resources, kafka.DescribeConfigRequestResource{
			ResourceType: kafka.ResourceTypeTopic,
			ResourceName: topic,
			ConfigNames:  []string{"retention.ms", "retention.bytes", "cleanup.policy"},
		})
	}
	answer, err := brokers.DescribeConfigs(ctx, req)
	if err != nil {
		return fmt.Errorf("-brokers: reading retentions from %s: %w", brokers.Addr, brokerRefusal(ctx, brokers, err))
	}
	for _, t := range answer.Resources {
		f := ops.Finding{
			Check:  "restore",
			Level:  "fail",
			Remedy: "give this user the permission DescribeConfigs on the topic",
		}
		if t.Error != nil {
			f.Text = fmt.Sprintf("topic %s: its retention cannot be read: %v", t.ResourceName, t.Error)
		} else {
			configs := map[string]string{}
			for _, c := range t.ConfigEntries {
				configs[c.ConfigName] = c.ConfigValue
			}
			f = judgeRetention(t.ResourceName, configs, within)
		}
		add(r, f)
	}
	return nil
}

// add adds a finding that the program makes itself.
func add(r *ops.Examination, f ops.Finding) {
	r.Findings = append(r.Findings, f)
	switch f.Level {
	case "fail":
		r.Fail++
	case "warn":
		r.Warn++
	}
}

// brokers returns a client of the brokers. Nil login: they need neither TLS nor a login.
func (a *app) brokers(addresses []string, login *string) (*kafka.Client, error) {
	client := &kafka.Client{Addr: kafka.TCP(addresses...), Timeout: program.ConnectTimeout}
	if login == nil {
		return client, nil
	}
	data, err := os.ReadFile(*login)
	if err != nil {
		return nil, fmt.Errorf("-broker-login: %w", err)
	}
	read := settings.File{Env: a.env}
	var way settings.Kafka
	read.Decode(data, "", &way)
	if err := read.Err(); err != nil {
		return nil, fmt.Errorf("-broker-login: %s: %w", *login, err)
	}
	client.Transport = &kafka.Transport{
		TLS:         way.Secure.Config(),
		SASL:        way.Mechanism(),
		DialTimeout: program.ConnectTimeout,
	}
	return client, nil
}

// brokerRefusal returns why a broker refuses TLS or the login, which err hides, or err.
func brokerRefusal(ctx context.Context, brokers *kafka.Client, err error) error {
	t, is := brokers.Transport.(*kafka.Transport)
	if !is {
		return err
	}
	first, _, _ := strings.Cut(brokers.Addr.String(), ",")
	conn, refused := (&kafka.Dialer{TLS: t.TLS, SASLMechanism: t.SASL, Timeout: program.ConnectTimeout}).DialContext(
		ctx,
		"tcp",
		first,
	)
	if refused != nil {
		return refused
	}
	_ = conn.Close()
	return err
}

// judgeRetention says whether messages that a restore undoes are still in a topic.
func judgeRetention(topic string, configs map[string]string, within time.Duration) ops.Finding {
	ms, err := strconv.ParseInt(configs["retention.ms"], 10, 64)
	deletes := slices.Contains(strings.Split(configs["cleanup.policy"], ","), "delete")
	switch {
	case err != nil:
		return ops.Finding{
			Check:  "restore",
			Level:  "fail",
			Text:   fmt.Sprintf("topic %s: retention.ms is %q", topic, configs["retention.ms"]),
			Remedy: "set it to a number of milliseconds",
		}
	case deletes && ms >= 0 && ms < within.Milliseconds():
		return ops.Finding{Check: "restore", Level: "fail",
			Text: fmt.Sprintf(
				"topic %s is kept for %s, and a restore may go back by %s: older messages "+
					"that it undoes would be gone, and their partitions halt",
				topic,
				show.Span(time.Duration(ms)*time.Millisecond),
				show.Span(within),
			),
			Remedy: fmt.Sprintf("set retention.ms of topic %s above %d, or restore only younger backups",
				topic, within.Milliseconds())}
	case deletes && configs["retention.bytes"] != "-1" && configs["retention.bytes"] != "":
		return ops.Finding{
			Check: "restore",
			Level: "warn",
			Text: fmt.Sprintf("topic %s: retention.bytes is %s, so messages may be deleted before their time",
				topic, configs["retention.bytes"]),
			Remedy: "set retention.bytes to -1, or make sure that it holds all that is produced in " +
				show.Span(within),
		}
	}
	return ops.Finding{
		Check: "restore",
		Level: "ok",
		Text:  fmt.Sprintf("topic %s is kept for as long as a restore may go back", topic),
	}
}
