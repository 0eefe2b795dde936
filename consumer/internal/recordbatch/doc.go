// Package recordbatch decodes the bytes of a fetch response, for every Kafka client that an adapter
// is written for. It returns batches with verified checksums, the committed records in them, and
// the position after everything that was looked at.
//
// Kafka clients have decoders too, but those hide what a consumer of exact positions must know.
// kafka-go's hides the last offset of a batch, without which a batch whose end was removed cannot
// be skipped. It also hides the largest timestamp, without which records of topics with
// message.timestamp.type=LogAppendTime get their producer's time. franz-go's,
// kgo.ProcessFetchPartition, returns the offset to go on from, but unpacks a whole response at
// once, which leaves memory without a bound. At a batch that it cannot unpack it ends without an
// error if any record came before.
package recordbatch
