-------------------------------- MODULE Lock --------------------------------
(***************************************************************************)
(* One lock at one store, and the clients that use it over a network that  *)
(* delays, loses and repeats.  docs/SPECIFICATION.md says what is assumed, *)
(* what is left out, and which function of the code each action stands for.*)
(*                                                                         *)
(* Time is discrete.  Nothing has a date: a lease and a deadline are the   *)
(* ticks that remain.  A step is never forced, so every client may pause   *)
(* at every point: a pause is time that passes while it takes no step.     *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Clients,            \* Processes that want the lock.
    Lease,              \* Ticks of the store's clock until a hold ends by itself.
    Margin,             \* Ticks by which a client's deadline is earlier.
    Rates,              \* What a client's clock may do in a tick: 0, 1 or 2 steps.
    Ids,                \* Bound of the search: acquisitions of each client.
    MostHolds,          \* Bound of the search: acquisitions of all clients.
    Renewals,           \* Clients renew what they hold.
    Writes,             \* Clients write to a resource while they hold the lock.
    MostGrants,         \* Bound of the search: the grants of one run.
    MostRequests        \* Bound of the search: requests of one hold under way.

\* What the protocol does right.  Each broken variant sets one of them to FALSE.
CONSTANTS
    ReleaseChecksId,    \* A release ends the hold that it names, and no other.
    CountsFromSend,     \* The deadline counts from before the request was sent.
    KeepsOrder,         \* Requests of one hold take effect in the order of sending (C17).
    Fenced              \* The resource refuses a token smaller than one it has seen.

\* What is assumed of the world.
CONSTANTS
    WritesAreLate,      \* A write may take effect after the deadline of its holder.
    HoldsVanish,        \* A hold may be taken by force, or lost with the store's data.
    TokensOutlive       \* The store's tokens go on rising after such a loss.

None == [op |-> "none"]
Free == [client |-> "none"]
NoTime == -1            \* A timer that does not run.

VARIABLES
    held,       \* The store: the hold that it has, or Free.
    last,       \* The store: the last token that it gave.
    grants,     \* Grants so far.  Nobody can see this; it numbers the grants.
    over,       \* Holds whose release the store has carried out while an acquisition of them
                \* was still on its way.  Nobody can see this.
    wire,       \* Requests on their way, of each hold.
    state,      \* What each client does.
    number,     \* The number of its acquisition: with the client, the id of the hold.
    timer,      \* Ticks of the client's clock until its deadline.
    renewal,    \* The same for what a renewal under way would give.
    reply,      \* An answer on its way to the client.
    grant,      \* The token of the client's hold, and the number of its grant.
    steady,     \* Ticks until the client's clock may be off by a step again.
    writing,    \* A write under way, which has the grant that it was begun with.
    fence,      \* The resource: the greatest token that it has seen.
    newest,     \* The greatest number of a grant that has written.  Nobody can see this.
    disorder    \* A write took effect after one of a later grant.  Nobody can see this.

store == <<held, last, grants, over>>
clocks == <<timer, renewal, steady>>
resource == <<writing, fence, newest, disorder>>
vars == <<store, wire, state, number, clocks, reply, grant, resource>>

Larger(a, b) == IF a > b THEN a ELSE b
NoGrant == [token |-> 0, nth |-> 0]

\* Whether a client believes that it holds the lock.  It looks at its clock for that.
Believes(c) == state[c] = "holding" /\ timer[c] > 0

Init ==
    /\ held = Free /\ last = 0 /\ grants = 0 /\ over = {}
    /\ wire = [c \in Clients |-> [n \in 1..Ids |-> <<>>]]
    /\ state = [c \in Clients |-> "idle"]
    /\ number = [c \in Clients |-> 1]
    /\ timer = [c \in Clients |-> NoTime]
    /\ renewal = [c \in Clients |-> NoTime]
    /\ reply = [c \in Clients |-> None]
    /\ grant = [c \in Clients |-> NoGrant]
    /\ steady = [c \in Clients |-> 0]
    /\ writing = [c \in Clients |-> NoGrant]
    /\ fence = 0 /\ newest = 0 /\ disorder = FALSE

-----------------------------------------------------------------------------
(* Requests.  Those of one hold are a queue; those of different holds       *)
(* overtake each other.  A request that somebody waits for is `awaited`.    *)

Unawaited(requests) ==
    [i \in DOMAIN requests |-> [requests[i] EXCEPT !.awaited = FALSE]]

\* The requests of client c after it has sent one more, for whose answer it waits.
Sent(c, op) ==
    [wire EXCEPT ![c][number[c]] =
        Append(Unawaited(@), [op |-> op, awaited |-> TRUE])]

HasRoom(c) == number[c] <= Ids /\ Len(wire[c][number[c]]) < MostRequests

\* The deadline of a hold that is asked for now.
Deadline == Lease - Margin

\* The holds that were asked for, c's next one included.
AskedFor(c) ==
    {id \in Clients \X (1..Ids): id[2] < number[id[1]] \/
        (id[2] = number[id[1]] /\ (id[1] = c \/ state[id[1]] # "idle"))}

\* The client asks for the hold.  After a refusal, it asks for the same one again.
Acquire(c) ==
    /\ state[c] = "idle" /\ HasRoom(c) /\ Cardinality(AskedFor(c)) <= MostHolds
    /\ wire' = Sent(c, "acquire")
    /\ state' = [state EXCEPT ![c] = "asking"]
    /\ timer' = [timer EXCEPT ![c] = Deadline]
    /\ UNCHANGED <<store, number, renewal, steady, reply, grant, resource>>

\* The watchdog asks for more lease.
Renew(c) ==
    /\ Renewals /\ Believes(c) /\ renewal[c] = NoTime /\ HasRoom(c)
    /\ wire' = Sent(c, "renew")
    /\ renewal' = [renewal EXCEPT ![c] = Deadline]
    /\ UNCHANGED <<store, state, number, timer, steady, reply, grant, resource>>

\* A renewal had no answer.  That is no loss: there may be another one.
RenewalFails(c) ==
    /\ renewal[c] # NoTime
    /\ renewal' = [renewal EXCEPT ![c] = NoTime]
    /\ wire' = [wire EXCEPT ![c][number[c]] = Unawaited(@)]
    /\ reply' = [reply EXCEPT ![c] = None]
    /\ UNCHANGED <<store, state, number, timer, steady, grant, resource>>

Forgotten(c) ==
    /\ timer' = [timer EXCEPT ![c] = NoTime]
    /\ renewal' = [renewal EXCEPT ![c] = NoTime]
    /\ steady' = [steady EXCEPT ![c] = 0]
    /\ reply' = [reply EXCEPT ![c] = None]
    /\ grant' = [grant EXCEPT ![c] = NoGrant]

\* The client gives back a hold, or undoes an acquisition: one that it gave up, one that
\* had no answer, or one that was granted too late.  From here on it believes in nothing,
\* and does not wait for the answer.  What it asks for next has another id.
Release(c) ==
    /\ state[c] \in {"asking", "holding"} /\ HasRoom(c)
    /\ wire' = [wire EXCEPT ![c][number[c]] =
                    Append(Unawaited(@), [op |-> "release", awaited |-> FALSE])]
    /\ state' = [state EXCEPT ![c] = "idle"]
    /\ number' = [number EXCEPT ![c] = @ + 1]
    /\ Forgotten(c)
    /\ UNCHANGED <<store, resource>>

\* The process is gone.  What it has sent may still arrive, and so may a write that it has
\* begun.  Another process takes its place, with ids of its own.
Crash(c) ==
    /\ state[c] \in {"asking", "holding"}
    /\ wire' = [wire EXCEPT ![c][number[c]] = Unawaited(@)]
    /\ state' = [state EXCEPT ![c] = "idle"]
    /\ number' = [number EXCEPT ![c] = @ + 1]
    /\ Forgotten(c)
    /\ UNCHANGED <<store, resource>>

\* A request is sent once more, by a client that had no answer or by the network.  Whichever
\* is answered first answers both.
Repeat(c, n) ==
    /\ wire[c][n] # <<>> /\ Len(wire[c][n]) < MostRequests
    /\ wire' = [wire EXCEPT ![c][n] = Append(@, @[Len(@)])]
    /\ UNCHANGED <<store, state, number, clocks, reply, grant, resource>>

\* A request is lost.
Lose(c, n) ==
    /\ wire[c][n] # <<>>
    /\ wire' = [wire EXCEPT ![c][n] = Tail(@)]
    /\ UNCHANGED <<store, state, number, clocks, reply, grant, resource>>

-----------------------------------------------------------------------------
(* The store.  Each request is one atomic step.                             *)

IsHeldBy(c, n) == held # Free /\ held.client = c /\ held.n = n

Without(requests, i) ==
    SubSeq(requests, 1, i - 1) \o SubSeq(requests, i + 1, Len(requests))

\* Request i of hold n of client c has arrived, and nobody hears of the answer: it is lost,
\* or nobody waits for it.
Unanswered(c, n, i) ==
    /\ wire' = [wire EXCEPT ![c][n] = Without(@, i)]
    /\ UNCHANGED <<state, timer, renewal, steady, reply, grant>>

\* The answer is on its way.
Answered(c, n, i, answer) ==
    /\ wire[c][n][i].awaited
    /\ wire' = [wire EXCEPT ![c][n] = Unawaited(Without(@, i))]
    /\ reply' = [reply EXCEPT ![c] = answer]
    /\ UNCHANGED <<state, timer, renewal, steady, grant>>

\* The answer says that there is no hold.  It is told at once: when such an answer comes
\* makes no difference.
Refused(c, n, i) ==
    /\ wire[c][n][i].awaited
    /\ wire' = [wire EXCEPT ![c][n] = Unawaited(Without(@, i))]
    /\ IF state[c] = "asking"
       THEN /\ state' = [state EXCEPT ![c] = "idle"]
            /\ Forgotten(c)
       ELSE \* A renewal of a hold that is gone: it is lost.
            /\ timer' = [timer EXCEPT ![c] = 0]
            /\ renewal' = [renewal EXCEPT ![c] = NoTime]
            /\ UNCHANGED <<state, steady, reply, grant>>

StoreAcquires(c, n, i) ==
    CASE IsHeldBy(c, n) ->      \* C5: what arrives twice has the effect of one.
            /\ held' = [held EXCEPT !.left = Larger(@, Lease)]
            /\ \/ Answered(c, n, i, [op |-> "granted", grant |-> held.grant])
               \/ Unanswered(c, n, i)
            /\ UNCHANGED <<last, grants, over>>
      [] held = Free ->
            LET new == [token |-> last + 1, nth |-> grants + 1] IN
            /\ held' = [client |-> c, n |-> n, left |-> Lease, grant |-> new]
            /\ last' = new.token /\ grants' = new.nth
            /\ \/ Answered(c, n, i, [op |-> "granted", grant |-> new])
               \/ Unanswered(c, n, i)
            /\ UNCHANGED over
      [] OTHER ->
            /\ Refused(c, n, i) \/ Unanswered(c, n, i)
            /\ UNCHANGED store

StoreRenews(c, n, i) ==
    IF IsHeldBy(c, n)
    THEN /\ held' = [held EXCEPT !.left = Larger(@, Lease)]
         /\ Answered(c, n, i, [op |-> "renewed"]) \/ Unanswered(c, n, i)
         /\ UNCHANGED <<last, grants, over>>
    ELSE /\ Refused(c, n, i) \/ Unanswered(c, n, i)
         /\ UNCHANGED store

StoreReleases(c, n, i) ==
    /\ held' = IF IsHeldBy(c, n) \/ ~ReleaseChecksId THEN Free ELSE held
    /\ over' = IF \E j \in DOMAIN wire[c][n]: wire[c][n][j].op = "acquire"
               THEN over \cup {<<c, n>>} ELSE over
    /\ Unanswered(c, n, i)
    /\ UNCHANGED <<last, grants>>

\* A request arrives, perhaps long after it was sent, and perhaps after its client has given
\* it up.
Arrive(c, n) ==
    /\ \E i \in DOMAIN wire[c][n]:
        /\ KeepsOrder => i = 1
        /\ CASE wire[c][n][i].op = "acquire" -> StoreAcquires(c, n, i)
             [] wire[c][n][i].op = "renew" -> StoreRenews(c, n, i)
             [] wire[c][n][i].op = "release" -> StoreReleases(c, n, i)
    /\ UNCHANGED <<number, resource>>

\* Somebody ends the hold by force, or the store comes back without its data.
Vanish ==
    /\ HoldsVanish /\ held # Free
    /\ held' = Free
    /\ last' = IF TokensOutlive THEN last ELSE 0
    /\ UNCHANGED <<grants, over, wire, state, number, clocks, reply, grant, resource>>

-----------------------------------------------------------------------------
(* Answers.                                                                 *)

\* The grant is believed if its deadline has not passed meanwhile.
Granted(c) ==
    /\ reply[c].op = "granted"
    /\ timer[c] > 0 \/ ~CountsFromSend
    /\ state' = [state EXCEPT ![c] = "holding"]
    /\ grant' = [grant EXCEPT ![c] = reply[c].grant]
    /\ timer' = [timer EXCEPT ![c] = IF CountsFromSend THEN @ ELSE Deadline]
    /\ reply' = [reply EXCEPT ![c] = None]
    /\ UNCHANGED <<store, wire, number, renewal, steady, resource>>

\* A renewal does not revive a hold whose deadline has passed.
Renewed(c) ==
    /\ reply[c].op = "renewed"
    /\ LET given == IF CountsFromSend THEN renewal[c] ELSE Deadline IN
       timer' = [timer EXCEPT ![c] = IF @ > 0 THEN Larger(@, given) ELSE @]
    /\ renewal' = [renewal EXCEPT ![c] = NoTime]
    /\ reply' = [reply EXCEPT ![c] = None]
    /\ UNCHANGED <<store, wire, state, number, steady, grant, resource>>

-----------------------------------------------------------------------------
(* Time.                                                                    *)

Runs(t) == t # NoTime
After(t, steps) == IF Runs(t) THEN Larger(t - steps, 0) ELSE t

\* The clock of the store goes one step.  That of a client may stand still or go two steps
\* instead, but only once while a deadline runs: clocks of a bounded drift.
Tick ==
    /\ held' = IF held = Free \/ held.left = 1 THEN Free
               ELSE [held EXCEPT !.left = @ - 1]
    /\ \E rate \in [Clients -> Rates]:
        /\ \A c \in Clients:
            rate[c] # 1 => Runs(timer[c]) /\ timer[c] > 0 /\ steady[c] = 0
        /\ timer' = [c \in Clients |-> After(timer[c], rate[c])]
        /\ renewal' = [c \in Clients |-> After(renewal[c], rate[c])]
        /\ steady' = [c \in Clients |->
            IF timer'[c] <= 0 THEN 0
            ELSE IF rate[c] # 1 THEN Lease - 1 ELSE Larger(steady[c] - 1, 0)]
    /\ UNCHANGED <<last, grants, over, wire, state, number, reply, grant, resource>>

-----------------------------------------------------------------------------
(* The resource that the lock protects.                                     *)

\* The holder looks at its clock and begins to write.
BeginWrite(c) ==
    /\ Writes /\ Believes(c) /\ writing[c] = NoGrant
    /\ writing' = [writing EXCEPT ![c] = grant[c]]
    /\ UNCHANGED <<store, wire, state, number, clocks, reply, grant, fence, newest,
                   disorder>>

\* The write takes effect, or is refused.  If writes may be late, that may be long after the
\* holder has lost the lock: it was paused, or the network was slow.
EndWrite(c) ==
    /\ writing[c] # NoGrant
    /\ WritesAreLate \/ (Believes(c) /\ grant[c] = writing[c])
    /\ writing' = [writing EXCEPT ![c] = NoGrant]
    /\ IF Fenced /\ writing[c].token < fence
       THEN UNCHANGED <<fence, newest, disorder>>
       ELSE /\ fence' = Larger(fence, writing[c].token)
            /\ newest' = Larger(newest, writing[c].nth)
            /\ disorder' = (disorder \/ writing[c].nth < newest)
    /\ UNCHANGED <<store, wire, state, number, clocks, reply, grant>>

\* The write is lost on its way.
LoseWrite(c) ==
    /\ writing[c] # NoGrant
    /\ writing' = [writing EXCEPT ![c] = NoGrant]
    /\ UNCHANGED <<store, wire, state, number, clocks, reply, grant, fence, newest,
                   disorder>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick
    \/ Vanish
    \/ \E c \in Clients:
        \/ Acquire(c) \/ Renew(c) \/ RenewalFails(c) \/ Release(c) \/ Crash(c)
        \/ Granted(c) \/ Renewed(c)
        \/ BeginWrite(c) \/ EndWrite(c) \/ LoseWrite(c)
        \/ \E n \in 1..Ids: Arrive(c, n) \/ Repeat(c, n) \/ Lose(c, n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What is promised.                                                        *)

\* G1: at most one client believes that it holds the lock.
Exclusion == \A c, d \in Clients: Believes(c) /\ Believes(d) => c = d

\* G1, C8, C10: a client that believes is right: the store has its hold.
BeliefIsTrue == \A c \in Clients: Believes(c) => IsHeldBy(c, number[c])

\* G3, C4: a grant has a greater token than every grant before it.
TokensRise == [][grants' > grants => last' > last /\ held'.grant.token = last']_vars

\* No write takes effect after one of a later grant.
WritesAreInOrder == ~disorder

\* C17: once a release was carried out, the store never has its hold again.
ReleaseIsFinal == held # Free => <<held.client, held.n>> \notin over

-----------------------------------------------------------------------------
(* Bounds of the search.                                                    *)

Few == grants <= MostGrants
Symmetry == Permutations(Clients)
=============================================================================
