// Package recordbatch decodes the bytes of a fetch response, for every Kafka client that an adapter
// is written for. It returns batches with verified checksums, the committed records in them, and
// the position after everything that was looked at.
//
// Kafka clients have decoders too, but those hide what a consumer of exact positions must know.
// kafka-go's hides the last offset of a batch, without which a batch whose end was removed cannot
// be skipped. It also hides the largest timestamp, without which records of topics with
// message.timestamp.type=LogAppendTime get their producer's time. franz-go's returns records only,
// and not how far the log was looked at after the last of them.
package recordbatch
