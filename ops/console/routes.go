package console

import (
	"net/http"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
)

// route is one page or act.
type route struct {
	pattern string
	needs   Access
	handle  func(v *visit) error
}

// routes are all pages and acts within a database.
func routes() []route {
	all := []route{
		{"GET /{$}", View, (*visit).overview},
		{"GET /consumers", View, (*visit).consumers},
		{"GET /consumers/cursor", View, (*visit).cursor},
		{"GET /parked", View, (*visit).parked},
		{"GET /parked/{id}", View, (*visit).parkedRow},
		{"GET /explain", View, (*visit).explain},
		{"GET /outbox", View, (*visit).outbox},
		{"GET /calls/{key}", View, (*visit).call},
		{"GET /requests", View, (*visit).requests},
		{"GET /events", View, (*visit).events},
		{"GET /events/at", View, (*visit).event},
		{"GET /keys", View, (*visit).keys},
		{
			"GET /places",
			View,
			plainList("Places",
				"tenants, endpoints and others, for programs that have several databases",
				operate.PlaceList,
				"/places",
				places),
		},
		{"GET /audit", View, plainList("Audit", "", operate.AuditList, "/audit", auditRows)},
		{"GET /audit/{id}", View, (*visit).auditRow},
		{"GET /doctor", View, (*visit).doctor},
		{"GET /jobs/{id}", View, (*visit).showJob},
		{"POST /jobs/{id}/stop", Operate, (*visit).stopJob},
	}
	return append(all, actRoutes()...)
}

// Routes returns the patterns of the console's pages and acts, as http.ServeMux has them, for
// example for the rules of a proxy. Paths are below Config.Prefix and, with Config.Pools, the name
// of a database. Every method other than GET needs [Operate].
func Routes() []string {
	var all []string
	for _, r := range routes() {
		all = append(all, r.pattern)
	}
	return all
}

// route makes the mux (U1).
func (c *console) route() {
	c.mux = http.NewServeMux()
	for _, r := range routes() {
		if !strings.HasPrefix(r.pattern, "GET ") {
			r.needs = Operate // a page that is added later cannot forget it
		}
		c.mux.HandleFunc(r.pattern, func(_ http.ResponseWriter, req *http.Request) {
			v := req.Context().Value(visitKey{}).(*visit)
			v.r = req
			if v.access < r.needs {
				v.failed(errViewer)
				return
			}
			if err := r.handle(v); err != nil {
				v.failed(err)
			}
		})
	}
	c.mux.HandleFunc("/", func(_ http.ResponseWriter, req *http.Request) {
		v := req.Context().Value(visitKey{}).(*visit)
		if req.Method != http.MethodGet && req.Method != http.MethodHead && v.access < Operate {
			v.failed(errViewer)
			return
		}
		v.failed(errMissing)
	})
}
