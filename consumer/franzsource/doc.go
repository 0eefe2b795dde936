// Package franzsource reads Kafka topics for package consumer, by means of twmb/franz-go.
package franzsource
