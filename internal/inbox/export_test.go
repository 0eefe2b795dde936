package inbox

// Divide has filters divided into parts of so many keys.
func (b *Builder) Divide(keys int64) { b.most = keys }
