package webhook

import (
	"bytes"
	"encoding/json"
	"slices"
)

// members returns the named members of the JSON object that a verified body is; nil if it is none. Names are compared as
// they are: encoding/json's own matching ignores case and takes the last of several, and another reader of the same bytes
// would see another id. So a member that stands there twice has no value.
func members(body []byte, names ...string) map[string]json.RawMessage {
	if !json.Valid(body) { // it bounds the depth, too
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if first, _ := dec.Token(); first != json.Delim('{') {
		return nil
	}
	found := map[string]json.RawMessage{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil
		}
		name, _ := token.(string)
		if !slices.Contains(names, name) {
			continue
		}
		if _, twice := found[name]; twice {
			value = nil
		}
		found[name] = value
	}
	return found
}

// text is a member's value if it is a string, else empty.
func text(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// memberID is a member that must be Event.ID.
func memberID(found map[string]json.RawMessage, name string) (string, error) {
	id := text(found[name])
	if !validID(id) {
		return "", Malformed("body's member "+name, "does not stand there once, with 1 to 255 visible ASCII characters")
	}
	return id, nil
}
