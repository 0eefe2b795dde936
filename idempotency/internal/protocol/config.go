package protocol

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// CheckHeaderName checks the name of a header, after setting an empty one to its default, and makes
// it canonical.
func CheckHeaderName(l *fields.List, field string, name *string, initial string) {
	*name = cmp.Or(*name, initial)
	if *name != "" && !ValidName(*name) {
		l.Add(field, "is %q: must be the name of a header", *name)
	}
	*name = http.CanonicalHeaderKey(*name)
}

// CheckRequestHeaderName is [Header] for a header that is read from requests.
func CheckRequestHeaderName(l *fields.List, field string, name *string, initial string) {
	CheckHeaderName(l, field, name, initial)
	if *name == "Transfer-Encoding" || *name == "Trailer" {
		l.Add(field, "%q cannot be used: net/http removes it from the request's header, and it is for one "+
			"connection only", *name)
	}
}

// CheckMethods checks the field Methods, after setting nil to the default POST and PATCH.
func CheckMethods(l *fields.List, methods *[]string) {
	if *methods == nil {
		*methods = []string{http.MethodPost, http.MethodPatch}
	}
	*methods = slices.Clone(*methods)
	if len(*methods) == 0 {
		l.Add("Methods", "must not be empty: without a method there is nothing to do; nil means POST and PATCH")
	}
	for i, m := range *methods {
		if !slices.Contains([]string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}, m) {
			l.Add(fmt.Sprintf("Methods[%d]", i), "%q is none of POST, PATCH, PUT and DELETE", m)
		}
	}
}
