package pace

// Signal puts a token into a channel that holds one, unless there is one.
func Signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}
