package eventsource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// ClusterID is the cluster in cursors of streams. Cursors of Kafka's topics have Kafka's cluster id
// there.
const ClusterID = "postgres"

// streamsSQL reads the state of streams. In, of one length: topics; for each the prefix of the
// names of its members' leases, and of its partitions' (S5). Out: a row for each stream that
// exists: topic, id, incarnation, partitions, number of members, partitions without a holder, in no
// order. By the unique names of leases, of which requests may have millions (T13). Takes no lock.
const streamsSQL = `
select s.topic,
       s.id,
       s.incarnation,
       s.partitions,
       (select count(*)
          from onlyonce.leases l
         where l.name >= t.members and l.name < left(t.members, -1) || '0' and l.until > clock_timestamp()
          and l.until <= clock_timestamp() + interval '1 hour'),
       array(select n::smallint from generate_series(0, s.partitions - 1) n
               left join lateral (select l.until from onlyonce.leases l where l.name = t.leases || n offset 0) l on true
              where l.until is null or l.until <= clock_timestamp() or l.until > clock_timestamp() + interval '1 hour'
              order by random())
  from unnest($1::text[], $2::text[], $3::text[]) t(topic, members, leases)
  join onlyonce.streams s on s.topic = t.topic`

// endsSQL reads the ends of partitions. In: topics and partitions, of one length. Out: a row for
// each: topic, partition, incarnation (null: the stream is gone), next offset. It is a hint: it
// does not keep segments from being emptied meanwhile.
const endsSQL = `
select h.topic, h.partition, s.incarnation, coalesce(b.next_offset, -1)
  from unnest($1::text[], $2::smallint[]) as h(topic, partition)
  left join onlyonce.streams s on s.topic = h.topic
  left join lateral onlyonce.stream_bounds(s.id, h.partition) b on true`

// Source reads streams of the event log. It is a [consumer.Source]; see the package's
// documentation.
type Source struct {
	pool       *primary.Pool
	database   database
	cfg        Config
	rotator    *ring.Rotator
	wake       chan struct{}
	scope      string // of its consumer; empty before consumer.New
	running    atomic.Bool
	membership ready.Link
}

var (
	_ consumer.Source = (*Source)(nil)
	_ claimed.Source  = (*Source)(nil)
)

// NewSource checks the configuration and returns every fault of it at once. It does not connect.
func NewSource(pool *pgxpool.Pool, cfg Config) (*Source, error) {
	cfg.Logger = process.Logger(pool, cfg.Logger)
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, err
	}
	s := &Source{pool: primary.Of(pool, cfg.Logger), cfg: cfg, wake: make(chan struct{}, 1)}
	s.database = databaseOf(s.pool)
	if s.rotator, err = ring.New(pool, ring.Events(), cfg.rotation()); err != nil {
		return nil, err
	}
	return s, nil
}

// Group implements consumer.Source. It is empty before consumer.New if Config.Group is.
func (s *Source) Group() string { return s.cfg.Group }

// Topics is Config.Topics.
func (s *Source) Topics() []string { return slices.Clone(s.cfg.Topics) }

// ServeScope implements claimed.Source. The scope names the group if Config.Group does not (F15).
func (s *Source) ServeScope(scope string, _ claimed.Mark) error {
	if s.scope != "" && s.scope != scope {
		return fmt.Errorf("is the source of the consumer with the scope %q already: make one for each consumer",
			s.scope)
	}
	s.scope = scope
	process.Made(s.pool.Raw(), process.Part{Topics: s.cfg.Topics})
	s.cfg.Group = cmp.Or(s.cfg.Group, scope)
	return nil
}

// GroupMetadata returns the metadata of the offsets that the group has committed in the streams.
func (s *Source) GroupMetadata(ctx context.Context) (map[source.TopicPartition]string, error) {
	found := map[source.TopicPartition]string{}
	var at source.TopicPartition
	var metadata string
	rows, _ := s.pool.Query(ctx, groupMetadataSQL, s.cfg.Group, s.cfg.Topics)
	_, err := pgx.ForEachRow(rows, []any{&at.Topic, &at.Partition, &metadata}, func() error {
		found[at] = metadata
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("offsets of group %s: %w", s.cfg.Group, err)
	}
	return found, nil
}

// Wake makes the source look for events now. It never blocks. After a transaction that appended
// events has committed, [Stream.Committed] calls it for each source of the process.
func (s *Source) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // a look is due already
	}
}

// running are the sources of this process whose Run has not returned, by what they read.
var running = struct {
	sync.Mutex
	sources map[*Source]bool
}{sources: map[*Source]bool{}}

// Stream is a stream of one database, for those that append to it.
type Stream struct {
	topic string
	at    database
}

// StreamOf returns a stream of a pool's database.
func StreamOf(pool *primary.Pool, topic string) Stream {
	return Stream{topic: topic, at: databaseOf(pool)}
}

// Committed wakes the sources of this process that read the stream. Call it after a transaction
// that appended events to it has committed. It never blocks.
func (m Stream) Committed() {
	running.Lock()
	defer running.Unlock()
	for s := range running.sources {
		if slices.Contains(s.cfg.Topics, m.topic) && s.database == m.at {
			s.Wake()
		}
	}
}

// database names a database as this process reaches it. Two names of one database cost a source a
// poll, and nothing else.
type database struct {
	host string
	port uint16
	name string
}

func databaseOf(pool *primary.Pool) database {
	cfg := pool.Raw().Config().ConnConfig
	return database{host: cfg.Host, port: cfg.Port, name: cfg.Database}
}

// registered notes that the source runs, until the returned function is called.
func (s *Source) registered() (end func()) {
	running.Lock()
	defer running.Unlock()
	running.sources[s] = true
	return func() {
		running.Lock()
		defer running.Unlock()
		delete(running.sources, s)
	}
}

// Ready returns nil while this process is a member of the group, with or without partitions, or why
// it is not. It is for consumer.Consumer.Ready.
func (s *Source) Ready() error { return s.membership.Err() }

// Run implements consumer.Source.
func (s *Source) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("eventsource: this source is running already")
	}
	defer s.running.Store(false)
	defer s.registered()()
	if s.cfg.Group == "" {
		return errors.New("eventsource: Config.Group: must not be empty for a source without a consumer")
	}
	if err := s.checkStreams(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("eventsource: %w", err)
	}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var rotating sync.WaitGroup
	rotating.Go(func() {
		if err := s.rotator.Run(stop); errors.Is(err, ring.ErrRights) {
			ring.LogNotRotating(stop, s.cfg.Logger)
		} else if err != nil && stop.Err() == nil {
			s.cfg.Logger.Warn("onlyonce: this process does not drop old segments of the event log; another one must",
				"error", err)
		}
	})
	m := &member{
		Source: s,
		own:    own,
		joined: map[string]*lease.Lease{},
		held:   map[partitionID]*partition{},
		ended:  make(chan *partition),
	}
	err := m.runMember(stop)
	cancel()
	rotating.Wait()
	return err
}

// checkStreams makes the streams that may be made, and checks that every topic has one, before the
// member joins.
func (s *Source) checkStreams(ctx context.Context) error {
	ctx, cancel := process.AtStart(ctx)
	defer cancel()
	if _, err := preflight.Check(ctx, s.pool.Raw(), preflight.Events); err != nil {
		return err
	}
	for _, topic := range s.cfg.Topics {
		if s.cfg.Partitions > 0 {
			if _, err := MakeStream(ctx, s.pool, topic, s.cfg.Partitions); err != nil {
				return err
			}
		}
	}
	found, err := s.readStreams(ctx)
	if err != nil {
		return err
	}
	for _, topic := range s.cfg.Topics {
		if !slices.ContainsFunc(found, func(st streamState) bool { return st.Topic == topic }) {
			return fmt.Errorf("%w: %s", ErrNoStream, topic)
		}
	}
	return nil
}

// streamState is a row of streamsSQL.
type streamState struct {
	Topic       string
	ID          int32
	Incarnation pgtype.UUID
	Partitions  int16
	Members     int
	Free        []int16
}

func (s *Source) readStreams(ctx context.Context) ([]streamState, error) {
	var members, partitions []string
	for _, topic := range s.cfg.Topics {
		members = append(members, names.Readers(s.cfg.Group, topic).Prefix())
		partitions = append(partitions, names.Partitions(s.cfg.Group, topic).Prefix())
	}
	rows, err := s.pool.Query(ctx, streamsSQL, s.cfg.Topics, members, partitions)
	if err != nil {
		return nil, fmt.Errorf("looking at the streams: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[streamState])
	if err != nil {
		return nil, fmt.Errorf("looking at the streams: %w", err)
	}
	return found, nil
}

// queryLog runs statements in one round trip. It does so without sequential scans, because a table
// may be tiny when the plan is made and large when it is used again. whole locks the log against
// being emptied, before the one snapshot of all statements is taken.
func queryLog(ctx context.Context, pool *primary.Pool, whole bool, queue func(b *pgx.Batch)) error {
	b := &pgx.Batch{}
	if whole {
		b.Queue(`begin isolation level repeatable read read only`)
		b.Queue(`lock table onlyonce.event_log in access share mode`)
	} else {
		b.Queue(`begin isolation level read committed read only`)
	}
	b.Queue(`select set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)`)
	queue(b)
	b.Queue(`commit`)
	return pool.SendBatch(ctx, b).Close()
}
