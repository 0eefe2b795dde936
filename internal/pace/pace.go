// Package pace has the paces of the engines that no user has a reason to change, so that a test
// can: what comes once in a hundred transactions has to come in a history of ten. A test sets them
// before anything runs. [Sleep] is how the engines wait.
package pace

import "time"

// Start bounds what a process asks of its database before it begins to work. A server that has gone
// without a word is found out then, and not when TCP gives up, after a quarter of an hour.
var Start = 10 * time.Second

// Prune is how many transactions of a partition lie between two looks at the rows of progress that
// can go.
var Prune = 128

// Sweep is how long a partition with several transactions at once waits between two moves of its
// position, unless some hundred messages are done.
var Sweep = 100 * time.Millisecond

// PruneIdle is how long a partition with several transactions at once, whose position does not
// move, waits until it looks for rows of done that can go.
var PruneIdle = time.Second
