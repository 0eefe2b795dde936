package hook

import "errors"

// ErrGoexit means that a function of the program has not returned: it has ended its goroutine.
var ErrGoexit = errors.New("the function called runtime.Goexit (testing's FailNow does)")

// Apart calls a function of the program in a goroutine of its own, and waits for it. If the
// function ends that goroutine, the error is ErrGoexit. Without that it would end the engine's
// goroutine. A panic is not recovered: fn does that.
func Apart(fn func() error) error {
	err := ErrGoexit // unless it returns
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = fn()
	}()
	<-done
	return err
}
