package received

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Members returns the named members of the JSON object in a verified body, or nil if the body
// is no object. Names are compared exactly, and a member that occurs twice has no value.
// encoding/json itself ignores case and takes the last of several, so that another reader of the
// same bytes could find another id.
func Members(body []byte, names ...string) map[string]json.RawMessage {
	if !json.Valid(body) { // it bounds the depth too
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

// String is a member's value if it is a string, otherwise "".
func String(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// IDMember returns a member whose value is used as Event.ID.
func IDMember(found map[string]json.RawMessage, name string) (string, error) {
	id := String(found[name])
	if !ValidID(id) {
		return "", Malformed("body's member "+name,
			"must occur exactly once, as a string of 1 to 255 visible ASCII characters")
	}
	return id, nil
}
