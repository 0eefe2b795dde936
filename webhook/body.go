package webhook

import (
	"errors"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/bodies"
)

// readBody reads the whole body, but no more than the verifier takes, whatever Content-Length says
// (W2), at a least rate and in memory of ep.bodies (W17). It returns how much of that the body
// holds, also with an error; the caller gives that back.
func (ep *Endpoint) readBody(
	w http.ResponseWriter,
	req *http.Request,
	deadline time.Time,
) (body []byte, held int64, status int, err error) {
	body, held, err = bodies.Read(w, req, int64(ep.cfg.verifier.maxBody), ep.bodies, deadline)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return body, held, 0, nil
	case errors.Is(err, bodies.ErrFull):
		return nil, held, http.StatusServiceUnavailable, ErrBusy
	case errors.Is(err, bodies.ErrSlow):
		return nil, held, http.StatusRequestTimeout, errBodySlow
	case errors.As(err, &tooLarge):
		return nil, held, http.StatusRequestEntityTooLarge, &Error{
			Provider: ep.cfg.verifier.scheme.Name,
			Check:    ErrTooLarge,
		}
	}
	return nil, held, http.StatusBadRequest, errBodyUnreadable
}
