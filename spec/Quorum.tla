------------------------------- MODULE Quorum -------------------------------
(***************************************************************************)
(* One lock at a quorum of independent stores, the members.  A client holds *)
(* it while a majority of them has its hold, and knows its token.           *)
(* docs/SPECIFICATION.md says what is assumed and what is left out.         *)
(*                                                                         *)
(* A member behaves as the store in Lock.tla does, where requests that are  *)
(* repeated and clocks that drift are looked at.  Here, all clocks are      *)
(* exact: the margin of Lock.tla is taken off on both sides.  A request and *)
(* its answer are one step; that a client acts later, or that the answer is *)
(* lost, is a step of its own.                                              *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Clients,            \* Processes that want the lock.
    Members,            \* The stores.
    Lease,              \* Ticks until a hold ends by itself.
    Proposals,          \* The tokens that clients propose.
    Tokens,             \* The last tokens that a member may have given before.
    Ids,                \* Bound of the search: acquisitions of each client.
    MostHolds,          \* Bound of the search: acquisitions of all clients.
    MostLosses,         \* Bound of the search: members that lose a hold, one at a time.
    Forces,             \* They lose it because it is released by force, or else come back
                        \* empty.
    Oversteps,          \* A member may answer a later token than necessary, and a refusal may
                        \* raise its last token, as on Redis without a script.
    Renewals,           \* Clients renew what they hold.
    Writes              \* Clients write to a resource while they hold the lock.

\* What the protocol does right.  Each broken variant sets one of them to FALSE.
CONSTANTS
    WritesBack,         \* A token that no majority knows is brought to one.
    RaisesWhereHeld,    \* To members that have granted the hold and still have it.
    CountsExact,        \* A member that has issued a later token does not know the earlier.
    RejoinsLate,        \* A member that came back empty stays out for a lease.
    TokensOutlive,      \* Its tokens go on rising.
    Fenced              \* The resource refuses a token smaller than one it has seen.

Free == [client |-> "none"]
NoTime == -1            \* A timer that does not run.
NoGrant == [token |-> 0, nth |-> 0, after |-> 0]

VARIABLES
    held,       \* The hold that each member has, or Free.
    last,       \* The last token that it gave or was told.
    out,        \* Ticks for which a member that came back empty stays out.
    losses,     \* Members that came back empty, or were forced, so far.
    given,      \* The tokens of the grants that counted so far.  Nobody can see all of them;
                \* a grant is numbered by its place here.
    state,      \* What each client does.
    number,     \* The number of its acquisition: with the client, the id of the hold.
    timer,      \* Ticks until its deadline, counted from before its first request.
    asked,      \* The members that its request is on its way to.
    votes,      \* What the members have answered: a token, or 0 for none.
    told,       \* The members that have answered that they know its token.
    proposal,   \* The token that it proposes.
    grant,      \* The token of its hold, and the number of its grant; before that, the
                \* number of grants that had counted when it began.
    renewal,    \* Ticks until the deadline that a renewal under way would give.
    renewed,    \* The members that have answered it.
    writing,    \* A write under way, which has the grant that it was begun with.
    fence,      \* The resource: the greatest token that it has seen.
    newest,     \* Of the grants that have written: the greatest number, and the greatest
                \* number of grants that had counted before.  Nobody can see this.
    disorder    \* "order": a write took effect after one of a grant with a greater number.
                \* "turn": after one of a grant that was asked for when its own had counted.
                \* Nobody can see this.

members == <<held, last, out, losses>>
round == <<asked, votes, told, proposal>>
renewing == <<renewal, renewed>>
resource == <<writing, fence, newest, disorder>>
vars == <<members, given, state, number, timer, round, grant, renewing, resource>>

Larger(a, b) == IF a > b THEN a ELSE b
Least(numbers) == CHOOSE n \in numbers: \A other \in numbers: n <= other
IsMajority(some) == 2 * Cardinality(some) > Cardinality(Members)

Believes(c) == state[c] = "holding" /\ timer[c] > 0
HasHold(m, c) == held[m] # Free /\ held[m].client = c /\ held[m].n = number[c]

\* Nobody has voted.
Blank == [m \in Members |-> 0]

Init ==
    /\ held = [m \in Members |-> Free]
    /\ last \in [Members -> Tokens]
    /\ out = [m \in Members |-> 0]
    /\ losses = 0 /\ given = <<>>
    /\ state = [c \in Clients |-> "idle"]
    /\ number = [c \in Clients |-> 1]
    /\ timer = [c \in Clients |-> NoTime]
    /\ asked = [c \in Clients |-> {}]
    /\ votes = [c \in Clients |-> Blank]
    /\ told = [c \in Clients |-> {}]
    /\ proposal = [c \in Clients |-> 0]
    /\ grant = [c \in Clients |-> NoGrant]
    /\ renewal = [c \in Clients |-> NoTime]
    /\ renewed = [c \in Clients |-> {}]
    /\ writing = [c \in Clients |-> NoGrant]
    /\ fence = 0 /\ newest = [nth |-> 0, after |-> 0] /\ disorder = {}

-----------------------------------------------------------------------------
(* Acquiring.                                                               *)

\* The holds that were asked for, c's next one included.
AskedFor(c) ==
    {id \in Clients \X (1..Ids): id[2] < number[id[1]] \/
        (id[2] = number[id[1]] /\ (id[1] = c \/ state[id[1]] # "idle"))}

\* The client proposes a token to all members at once.  Its deadline counts from here.
Acquire(c) ==
    /\ state[c] = "idle" /\ number[c] <= Ids /\ Cardinality(AskedFor(c)) <= MostHolds
    /\ \E p \in Proposals: proposal' = [proposal EXCEPT ![c] = p]
    /\ state' = [state EXCEPT ![c] = "asking"]
    /\ timer' = [timer EXCEPT ![c] = Lease]
    /\ asked' = [asked EXCEPT ![c] = Members]
    /\ grant' = [grant EXCEPT ![c] = [NoGrant EXCEPT !.after = Len(given)]]
    /\ UNCHANGED <<members, given, number, votes, told, renewing, resource>>

\* A member grants the hold, with the proposed token or a greater one, if it has no other
\* hold.  The answer may be lost.
Vote(c, m) ==
    /\ state[c] \in {"asking", "leaving"} /\ m \in asked[c]
    /\ out[m] = 0 /\ held[m] = Free
    /\ \E more \in IF Oversteps THEN {0, 1} ELSE {0}:
       LET token == Larger(last[m] + 1, proposal[c]) + more IN
       /\ held' = [held EXCEPT ![m] = [client |-> c, n |-> number[c], left |-> Lease]]
       /\ last' = [last EXCEPT ![m] = token]
       /\ votes' = [votes EXCEPT ![c][m] = IF state[c] = "asking" THEN token ELSE 0]
    /\ asked' = [asked EXCEPT ![c] = @ \ {m}]
    /\ UNCHANGED <<out, losses, given, state, number, timer, told, proposal, grant,
                   renewing, resource>>

\* A refusal changes nothing, or raises the last token.
Refuse(c, m) ==
    /\ Oversteps
    /\ state[c] \in {"asking", "leaving"} /\ m \in asked[c]
    /\ out[m] = 0 /\ held[m] # Free
    /\ last' = [last EXCEPT ![m] = @ + 1]
    /\ asked' = [asked EXCEPT ![c] = @ \ {m}]
    /\ UNCHANGED <<held, out, losses, given, state, number, timer, votes, told, proposal, grant,
                   renewing, resource>>

\* The members that have granted the hold.
Voters(c) == {m \in Members: votes[c][m] > 0}

\* The token of the grant: the least one for which a majority has granted the hold with it or
\* with an earlier one.  Each earlier hold has left its token at one of those.
Token(c) ==
    Least({votes[c][m]: m \in {m \in Voters(c):
        IsMajority({other \in Voters(c): votes[c][other] <= votes[c][m]})}})

\* The members that know it: those that have answered just this one, and those that were told.
\* Each later hold needs one of them, if they are a majority.  A member that has answered a
\* later one may have given this one to another hold before.
Knowing(c) ==
    {m \in Members: votes[c][m] = Token(c) \/ (~CountsExact /\ votes[c][m] > Token(c))}
    \cup told[c]

\* The grant counts: the client may believe in it, if its deadline has not passed.
Counts(c) ==
    /\ timer[c] > 0
    /\ state' = [state EXCEPT ![c] = "holding"]
    /\ given' = Append(given, Token(c))
    /\ grant' = [grant EXCEPT ![c] = [@ EXCEPT !.token = Token(c), !.nth = Len(given) + 1]]
    /\ asked' = [asked EXCEPT ![c] = {}]
    /\ votes' = [votes EXCEPT ![c] = Blank]
    /\ told' = [told EXCEPT ![c] = {}]
    /\ proposal' = [proposal EXCEPT ![c] = 0]
    /\ UNCHANGED <<members, number, timer, renewing, resource>>

\* One round trip is enough if a majority knows the token: as a rule because it has answered
\* the proposal itself.
CountAtOnce(c) ==
    /\ state[c] = "asking" /\ IsMajority(Voters(c))
    /\ IsMajority(Knowing(c)) \/ ~WritesBack
    /\ Counts(c)

\* A majority has granted the hold, but too few know the token.
Raise(c) ==
    /\ state[c] = "asking" /\ IsMajority(Voters(c)) /\ ~IsMajority(Knowing(c)) /\ WritesBack
    /\ state' = [state EXCEPT ![c] = "raising"]
    /\ UNCHANGED <<members, given, number, timer, round, grant, renewing, resource>>

\* A member is told the token, and gives only later ones from now on.  It says that it knows
\* it, and shows that it has the hold, by a renewal.
Tell(c, m) ==
    /\ state[c] = "raising" /\ m \notin Knowing(c) /\ out[m] = 0
    /\ RaisesWhereHeld => m \in Voters(c) /\ votes[c][m] < Token(c) /\ HasHold(m, c)
    /\ last' = [last EXCEPT ![m] = Larger(@, Token(c))]
    /\ held' = IF HasHold(m, c) THEN [held EXCEPT ![m].left = Lease] ELSE held
    /\ told' = [told EXCEPT ![c] = @ \cup {m}]
    /\ UNCHANGED <<out, losses, given, state, number, timer, asked, votes, proposal, grant,
                   renewing, resource>>

CountRaised(c) ==
    /\ state[c] = "raising" /\ IsMajority(Knowing(c))
    /\ Counts(c)

-----------------------------------------------------------------------------
(* Keeping and leaving.                                                     *)

Renew(c) ==
    /\ Renewals /\ Believes(c) /\ renewal[c] = NoTime
    /\ renewal' = [renewal EXCEPT ![c] = Lease]
    /\ UNCHANGED <<members, given, state, number, timer, round, grant, renewed, resource>>

\* A member has the hold, and extends it.
MemberRenews(c, m) ==
    /\ renewal[c] # NoTime /\ m \notin renewed[c] /\ out[m] = 0 /\ HasHold(m, c)
    /\ held' = [held EXCEPT ![m].left = Lease]
    /\ renewed' = [renewed EXCEPT ![c] = @ \cup {m}]
    /\ UNCHANGED <<last, out, losses, given, state, number, timer, round, grant, renewal,
                   resource>>

\* The renewal is over: it counts if a majority has answered it.
Renewed(c) ==
    /\ renewal[c] # NoTime
    /\ timer' = [timer EXCEPT ![c] =
                    IF @ > 0 /\ IsMajority(renewed[c]) THEN Larger(@, renewal[c]) ELSE @]
    /\ renewal' = [renewal EXCEPT ![c] = NoTime]
    /\ renewed' = [renewed EXCEPT ![c] = {}]
    /\ UNCHANGED <<members, given, state, number, round, grant, resource>>

\* From here on the client believes in nothing.
Forgotten(c) ==
    /\ timer' = [timer EXCEPT ![c] = NoTime]
    /\ votes' = [votes EXCEPT ![c] = Blank]
    /\ told' = [told EXCEPT ![c] = {}]
    /\ grant' = [grant EXCEPT ![c] = NoGrant]
    /\ renewal' = [renewal EXCEPT ![c] = NoTime]
    /\ renewed' = [renewed EXCEPT ![c] = {}]

\* The client releases, or undoes what a majority did not grant in time, at all members.
\* What it has asked a member before may arrive there until the release does.
Release(c) ==
    /\ state[c] \in {"asking", "raising", "holding"}
    /\ state' = [state EXCEPT ![c] = "leaving"]
    /\ Forgotten(c)
    /\ UNCHANGED <<members, given, number, asked, proposal, resource>>

MemberReleases(c, m) ==
    /\ state[c] = "leaving" /\ HasHold(m, c)
    /\ held' = [held EXCEPT ![m] = Free]
    /\ asked' = [asked EXCEPT ![c] = @ \ {m}]
    /\ UNCHANGED <<last, out, losses, given, state, number, timer, votes, told, proposal,
                   grant, renewing, resource>>

\* The client goes on, whether or not its releases have arrived.  A crash is the same: a
\* member that heard nothing of it keeps the hold for its lease.
Left(c) ==
    /\ state[c] = "leaving"
    /\ state' = [state EXCEPT ![c] = "idle"]
    /\ number' = [number EXCEPT ![c] = @ + 1]
    /\ asked' = [asked EXCEPT ![c] = {}]
    /\ proposal' = [proposal EXCEPT ![c] = 0]
    /\ UNCHANGED <<members, given, timer, votes, told, grant, renewing, resource>>

-----------------------------------------------------------------------------
(* Time and failures.                                                       *)

After(t) == IF t > 0 THEN t - 1 ELSE t

Tick ==
    /\ held' = [m \in Members |->
        IF held[m] = Free \/ held[m].left = 1 THEN Free ELSE [held[m] EXCEPT !.left = @ - 1]]
    /\ out' = [m \in Members |-> After(out[m])]
    /\ timer' = [c \in Clients |-> After(timer[c])]
    /\ renewal' = [c \in Clients |-> After(renewal[c])]
    /\ UNCHANGED <<last, losses, given, state, number, round, grant, renewed, resource>>

\* A member comes back without its data.  A member that is down, or that comes back with its
\* data, is one that does not answer for a while.
LoseData(m) ==
    /\ ~Forces /\ losses < MostLosses
    /\ losses' = losses + 1
    /\ held' = [held EXCEPT ![m] = Free]
    /\ last' = IF TokensOutlive THEN last ELSE [last EXCEPT ![m] = 0]
    /\ out' = [out EXCEPT ![m] = IF RejoinsLate THEN Lease ELSE 0]
    /\ UNCHANGED <<given, state, number, timer, round, grant, renewing, resource>>

\* A hold is released by force at a member.  The same goes for a named owner that takes over
\* its own hold there: the older hold is gone.
Force(m) ==
    /\ Forces /\ losses < MostLosses /\ held[m] # Free
    /\ losses' = losses + 1
    /\ held' = [held EXCEPT ![m] = Free]
    /\ UNCHANGED <<last, out, given, state, number, timer, round, grant, renewing, resource>>

-----------------------------------------------------------------------------
(* The resource that the lock protects, as in Lock.tla.                     *)

BeginWrite(c) ==
    /\ Writes /\ Believes(c) /\ writing[c] = NoGrant
    /\ writing' = [writing EXCEPT ![c] = grant[c]]
    /\ UNCHANGED <<members, given, state, number, timer, round, grant, renewing, fence,
                   newest, disorder>>

\* The write takes effect, or is refused: perhaps long after the holder has lost the lock.
EndWrite(c) ==
    /\ writing[c] # NoGrant
    /\ writing' = [writing EXCEPT ![c] = NoGrant]
    /\ IF Fenced /\ writing[c].token < fence
       THEN UNCHANGED <<fence, newest, disorder>>
       ELSE /\ fence' = Larger(fence, writing[c].token)
            /\ newest' = [nth |-> Larger(newest.nth, writing[c].nth),
                          after |-> Larger(newest.after, writing[c].after)]
            /\ disorder' = disorder
                \cup (IF writing[c].nth < newest.nth THEN {"order"} ELSE {})
                \cup (IF writing[c].nth <= newest.after THEN {"turn"} ELSE {})
    /\ UNCHANGED <<members, given, state, number, timer, round, grant, renewing>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick
    \/ \E m \in Members: LoseData(m) \/ Force(m)
    \/ \E c \in Clients:
        \/ Acquire(c) \/ CountAtOnce(c) \/ Raise(c) \/ CountRaised(c)
        \/ Renew(c) \/ Renewed(c) \/ Release(c) \/ Left(c)
        \/ BeginWrite(c) \/ EndWrite(c)
        \/ \E m \in Members:
            Vote(c, m) \/ Refuse(c, m) \/ Tell(c, m) \/ MemberRenews(c, m) \/ MemberReleases(c, m)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What is promised.                                                        *)

\* At most one client believes that it holds the lock.
Exclusion == \A c, d \in Clients: Believes(c) /\ Believes(d) => c = d

\* A grant has a greater token than every grant that counted before it.
TokensRise == \A i, j \in DOMAIN given: i < j => given[i] < given[j]

\* The same where two clients may hold the lock at once: a grant has a greater token than
\* every grant that had counted when it was asked for.
TokensRiseInTurn ==
    \A c \in Clients: state[c] = "holding" =>
        \A i \in 1..grant[c].after: given[i] < grant[c].token

\* No two grants have the same token, not even where two clients may hold the lock at once.
TokensDiffer == \A i, j \in DOMAIN given: i # j => given[i] # given[j]

\* No write takes effect after one of a later grant.
WritesAreInOrder == "order" \notin disorder

\* The same where two clients may hold the lock at once: after one of a grant that was asked
\* for when its own had counted.
WritesAreInTurn == "turn" \notin disorder

Symmetry == Permutations(Clients) \cup Permutations(Members)
=============================================================================
