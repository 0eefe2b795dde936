package idempotency

import (
	"bytes"
	"mime"
	"strings"
)

// maxParts is how many parts of a multipart body are told apart. A body with more is compared as
// bytes.
const maxParts = 1000

// multipartParts divides a multipart body at its boundary, which clients choose at random each time
// they build a form (H7). Two bodies with equal parts, headers and contents byte by byte, are the
// same in any reader's eyes, whatever their boundaries, if the dividing line occurs only between
// the parts. So ok is false, and the body is compared as bytes, unless it has the plain form that
// clients send:
//
//	--boundary CR LF part CR LF --boundary CR LF part CR LF --boundary--
//
// A CR LF may follow. No dashes with the boundary may occur within a part, not even in the middle
// of a line, because some readers would divide it there. media is the Content-Type without the
// boundary.
func multipartParts(contentType string, body []byte) (media string, parts [][]byte, ok bool) {
	if len(contentType) < len(multipartPrefix) ||
		strings.ToLower(contentType[:len(multipartPrefix)]) != multipartPrefix {
		return "", nil, false
	}
	if strings.Contains(contentType, "*") { // readers differ in which parameter counts
		return "", nil, false
	}
	kind, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err != nil || boundary == "" || len(boundary) > 70 {
		return "", nil, false
	}
	delete(params, "boundary")
	if media = mime.FormatMediaType(kind, params); media == "" {
		return "", nil, false
	}
	line := []byte("--" + boundary)
	rest, ok := bytes.CutPrefix(body, line)
	for ok && len(parts) <= maxParts {
		if end, last := bytes.CutPrefix(rest, []byte("--")); last {
			parts = append(parts, end)
			return normalizedMediaType(media), parts, len(end) == 0 || string(end) == "\r\n"
		}
		var part []byte
		if rest, ok = bytes.CutPrefix(rest, []byte("\r\n")); !ok {
			break
		}
		if part, rest, ok = bytes.Cut(rest, line); !ok {
			break
		}
		part, ok = bytes.CutSuffix(part, []byte("\r\n"))
		parts = append(parts, part)
	}
	return "", nil, false
}

const multipartPrefix = "multipart/"
