package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// promises are what the program has told clients and operators, by token: the text that an effect
// leaves here, and the body of the call that it asks for.
type promises struct {
	mu      sync.Mutex
	of      map[string]*promise
	standby map[string]promise
}

// promise is what was said of one token.
type promise struct {
	local int // times that it is to take effect here
	calls int // times that it is to take effect at the remote
	// fewer: a person has given it up, or of calls, a failover has lost it. It takes effect at most
	// that often.
	fewer, fewerCalls bool
	durable           bool // what has it outlives a failover, for example a record of Kafka
}

// add notes that something was accepted.
func (p *promises) add(token string, local, calls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]*promise{}
	}
	now := p.of[token]
	if now == nil {
		now = &promise{}
		p.of[token] = now
	}
	now.local += local
	now.calls += calls
}

// giveUp notes that a person has given up what a token asks for: here, or at the remote.
func (p *promises) giveUp(token string, call bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.of[token]
	if now == nil {
		return
	}
	now.fewer = now.fewer || !call
	now.fewerCalls = true
}

// outlive notes that a failover does not lose what has the token.
func (p *promises) outlive(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[token].durable = true
}

// keep notes what a standby knows of.
func (p *promises) keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.standby = map[string]promise{}
	for token, now := range p.of {
		p.standby[token] = *now
	}
}

// lose notes that what was promised since keep is lost: nothing of it is here, and its calls may
// have been applied.
func (p *promises) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for token, now := range p.of {
		before, there := p.standby[token]
		switch {
		case before == *now:
		case now.durable && there: // of what an operator has asked for
			now.local = before.local
		case now.durable:
			now.local = 1
		default:
			now.local = before.local
			now.fewer = before.fewer
			now.fewerCalls = true
		}
	}
}

// judge compares what was promised with what took effect.
func (p *promises) judge(local, calls map[string]int) (breaches []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := func(token string) promise {
		if now := p.of[token]; now != nil {
			return *now
		}
		return promise{}
	}
	tokens := map[string]bool{}
	for _, of := range []map[string]int{local, calls} {
		for token := range of {
			tokens[token] = true
		}
	}
	for token := range p.of {
		tokens[token] = true
	}
	for _, token := range slices.Sorted(maps.Keys(tokens)) {
		now := said(token)
		breaches = append(breaches, compare(token, "here", now.local, local[token], now.fewer)...)
		breaches = append(breaches, compare(token, "at the remote", now.calls, calls[token], now.fewerCalls)...)
	}
	return breaches
}

// compare compares how often something was promised with how often it took effect.
func compare(token, where string, promised, n int, fewer bool) []string {
	switch {
	case n > promised:
		return []string{fmt.Sprintf("twice: %q took effect %s %d times, and was accepted %d times", token, where, n, promised)}
	case n < promised && !fewer:
		return []string{fmt.Sprintf("lost: %q was accepted %d times, and took effect %s %d times", token, promised, where, n)}
	}
	return nil
}
