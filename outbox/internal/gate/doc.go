// Package gate decides when a relay may start calls of a sink, in all of its lanes. It knows no
// call, no lane and no SQL: who wants to start one names its tenant and the prefix of its ordering
// key ([Entrant]), and gets a [Ticket] through.
//
// # What a ticket is
//
// A ticket is the right to have one call under way: one of the relay's slots, with a permit of the
// sink's rate. Before a call starts with it, [Ticket.Admit] adds what the call needs besides: a
// place among the calls of its tenant, and a permit of the rate of its tenant or its prefix. All of
// it is taken or nothing is.
//
//	            Take                Admit                     Returned
//	(nothing) --------> blank ----------------> admitted --------------------> returned
//	                    |  ^   \ Reserve           |  \                          |  |
//	                    |  |    v                  |   \ Abandon                 |  | Follow: the next
//	                    |  +- reserved             |    v                        |  | call has it
//	                    |  Admit: another rate     |   abandoned -- Returned --+ |  +--> admitted
//	                    v                          v                           v v
//	                  Unused                     Unused                        Done
//
// Take takes a slot, and a permit of the sink's rate. The ticket is blank: it is for no call.
//
// Reserve adds a permit and a place of calls that wait for a rate, before it is known which calls
// these are. Admit uses them if the call counts for that rate, and gives them back if not.
//
// Admit says that the call may start, that it waits elsewhere (SetAside), or that it waits where it
// is (NotYet). If it may not start, the ticket is blank.
//
// Follow ends one call and starts the next one of its ordering key in the same slot, under one
// lock. If the next may not start, the ticket is done.
//
// Abandon gives the slot of a call that does not return to others. The call counts for its tenant
// and its rate until it returns.
//
// Done and Unused are the only two ends, and each ticket has one of them, once. Done: its call has
// returned, and its permits are used up. Unused: no call was made, and its permits go back, unless
// they have lapsed. (The slot that Take gives and Follow keeps has one permit of the sink for each
// call.)
//
// Who has it: the goroutine of the lane, from Take on. It is the only one to take, admit, follow
// and end. The goroutine of a call only notes that it has returned (Returned). If the lane is over
// by then, nobody else is left, and it ends the ticket itself.
//
// No call starts with a ticket that has had its end, or that another call has. [Gate.Close] reports
// that, and each ticket that has had no end, or two: all are faults of the program. A slot that is
// lost is lost until the relay ends, and a slot that is given back twice is one too many.
//
// # Interleavings
//
// Each is prevented by one lock, under which a ticket changes its state:
//
//	lane A: call 1 of order "a" returns: its place among the tenant's calls is free
//	lane B: takes that place for another call of the tenant
//	lane A: call 2 of order "a" finds no place, and is parked with all that wait behind it
//	-> Follow gives up the place and takes it again at once.
//
//	lane A: takes the last slot, asks the database for a permit of tenant T, and waits for its answer
//	lane B: takes T's permits for other calls
//	lane A: has a slot and no permit: it holds up others
//	-> the ticket stays blank, and goes to the next call, or is unused.
//
//	lane A: reserves a permit of prefix P; an operator takes P's rate back; the call that it picks
//	        counts for its tenant now, whose rate has no permit
//	-> Admit compares the rate, and gives P's permit back.
//
//	lane A: reserves permits; its transaction takes 2 s; they have lapsed, and others have been granted
//	lane A: picks nothing: its old permits come on top of the new ones: more calls start than the rate
//	-> Unused gives a permit back only to the grant that it came from.
//
//	a call is abandoned: its slot goes to another; it returns, and its slot is given back again
//	-> an abandoned ticket has no slot.
//
//	a call is abandoned, its lane is given back, and then it returns: nobody takes it in, and its
//	tenant has a call too few for as long as the relay runs
//	-> the goroutine of the call ends its ticket.
//
// # Rates and shares
//
// The database has a bucket of permits for each rate, and a share for each relay of the calls that
// may be under way (rules O14 and O15). The gate keeps what was granted, and says what to ask for:
// [Gate.Due] when, [Gate.Ask] what, and [Gate.Answer] takes in what the database says. Permits may
// be used for half a second after the question was sent, and a share for ten seconds, by the clock
// of this process. Questions are numbered: for a share only the answer to the last one counts.
//
// Rules O14 and O15 have the interleavings of these. Here they mean:
//
//   - A share that is no longer wanted is given up when the question is made, before the database
//     knows.
//   - Neither a stopped process nor a slow answer lengthens what was granted: times count from the
//     question.
//   - A call counts for the rate by which it started, whatever rates are set meanwhile.
package gate
