// Package telemetry tests package telemetry with OpenTelemetry's SDK. It is a module of its own, so
// that users of telemetry do not get the SDK that it was tested with.
package telemetry
