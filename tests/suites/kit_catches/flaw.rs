//! [`Flaw`]: the ways in which a backend can break the contract.

use lockcore_testkit::{Op, Part};

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The backend is correct, and has all parts.
    None,
    /// The backend is correct, and has only these parts.
    HasOnly(&'static [Part]),

    // C1
    LooksThenWrites,
    GrantsToEverybody,
    FairHoldsIgnoreExclusiveOnes,

    // C2
    RefusesWithoutRemaining,
    RefusesWithTheWholeLease,
    RefusalExtendsTheLease,
    RefusalIsCounted,
    RefusesWhoExpectsIt,
    RefusesWhoExpectsItIfAnyIsHeld,
    RefusalQueues,
    WaitsInsteadOfRefusing,

    // C3
    NeverEnds,
    EndsEarly,
    EndsEarlyOnceRenewed,
    ExpiryBelongsToTheName,
    TakesAMillisecondForNone,
    CutsLeasesToThirtyTwoBits,
    RevivesWhatHasEnded,
    StoresThenSetsTheExpiry,

    // C4
    TokensStartAgainWithTheName,
    TokensOfEachClient,
    TokenOfTheExpiredHoldAgain,
    TokensStartAgainWhenForced,
    TokensStartAgainAtARefusal,
    TokenOfTheNamedOwner,

    // C37
    GivesSeveralTokensAwayAgain,
    GivesTheTokensOfTheExpiredAwayAgain,
    RepetitionHasTheLastOfItsTokens,

    // C38
    RefusalWakesNobody,
    FairRefusalWakesNobody,
    RefusalWakesOnce,
    WaitersBeforeAreNotHeardOf,
    DemandIsHeardAsAnEnd,
    HearsOfTheDemandOfOneName,
    DemandEndsTheHold,
    DemandShortensTheLease,
    HearsOfTheDemandInEveryMode,

    // C39
    ReleaseGrantsNothing,
    DirectGrantIsNotTold,
    DirectGrantHasTheTokenBefore,
    DirectGrantCountsTwo,
    RepeatedDirectGrantHasANewToken,
    DirectGrantKeepsThePlace,
    GrantsDirectlyToTheLast,
    GrantsDirectlyWithoutANumber,
    NumbersAreKept,
    DirectGrantNamesTheFirstRequest,
    DirectGrantEndsEarly,
    DirectGrantHasALeaseOfItsOwn,
    DirectGrantIsNotRenewed,
    GivingUpGrantsNothing,
    GivingUpGrantsWhatIsHeld,
    PartialReleaseGrants,

    // C40
    ProposalIsIgnored,
    ProposalIsExceeded,
    ProposalGoesBack,
    ProposalIsForgotten,
    ProposalTakesTheLock,
    ProposalRenumbersARepetition,
    RaisingDoesNothing,
    RaisingLowers,
    RaisingEndsTheHold,
    RaisingKeepsTheName,

    // C5
    CountsRepetitions,
    NewTokenForARepetition,
    NewTokenForARepetitionByName,
    KnowsRepetitionsOfItsOwnClientOnly,
    AddsCounts,
    SubtractsCounts,
    ReleasesTwice,
    RenewalsAddUp,

    // C6
    RefusesTheOwnersNextHold,
    QueueKeepsOutTheHolder,
    TakeoverKeepsTheToken,
    TakeoverKeepsTheCount,
    TakeoverKeepsTheOldHold,
    TakesAllNamedOwnersForOne,
    NamedOwnersTakeEverything,

    // C7
    GrowthGrants,
    GrowthRevives,
    GrowthSteals,
    GrowthTakesOver,
    GrowthIsHeldUpByTheQueue,
    GrowthIsAlwaysGone,
    GrowthKeepsTheLease,

    // C8
    RenewsForAnybody,
    RenewalMakesAHold,
    RenewalDoesNothing,
    RenewsTheFirstHundred,
    AnswersOnlyWhatIsHeld,
    AnswersInReverse,
    AnswersByName,
    FailsOnAnEmptyBatch,

    // C9
    RenewalShortens,
    RepetitionShortens,
    GrowthShortens,

    // C10
    ReleaseDeletes,
    UndoDeletes,
    ReleaseOfAFreeLockSucceeds,
    ReleaseLowersTheCount,
    ReleasesForItsOwnClientOnly,

    // C11
    PartialReleaseFrees,
    PartialReleaseShortens,
    PartialReleaseExtends,
    PartialReleaseMakesAHold,

    // C12
    ReleaseWakesNobody,
    ForcedReleaseWakesNobody,
    NestedReleaseWakesNobody,
    WakesItsOwnClientOnly,
    WakesOneSubscriberOnly,
    WakesOnce,
    WakesOnlyThoseAsleep,
    TakeoverWakesNobody,
    ShortHoldAfterAPlaceWakesNobody,
    DroppedWaitTakesTheWakeup,
    LeavingSilencesTheOthers,
    SubscriptionBeginsWithTheFirstWait,

    // C13
    ForceFreesNamedOwnersOnly,
    ForceLowersTheCount,
    ForceAlwaysSaysHeld,
    ForceNeverSaysHeld,
    ForceKeepsTheHoldForItsOwner,

    // C14
    ReportsTheIdForTheOwner,
    ReportsAnotherMode,
    ReportsOneForEveryCount,
    ReportsTheWholeLease,
    ReportsTheExpired,
    ReportsALeaseOfAFreeLock,
    LookingMakesANewHold,

    // C15
    IgnoresCase,
    IgnoresSpaceAround,
    IgnoresWhatIsInBraces,
    CutsLongNames,
    TakesOwnersForNames,
    ForceFreesEveryName,
    KeepsReleasedNames,
    KeepsExpiredNames,
    KeepsNamesAskedFor,
    KeepsSubscriptions,

    // C16
    /// Has and declares a part that is not named.
    IsNotNamed(Part),
    /// Neither has nor declares a part that is named.
    IsNotDeclared(Part),
    /// Has a part that is neither declared nor named.
    GrantsUndeclared(Part),
    ResizesUndeclared,
    CallsTheUndeclaredHeld,
    CallsTheUndeclaredAnotherError,
    TakesTheUndeclaredAndFails,
    DeclaresNothing,
    DeclaresWhatItRefuses,
    DeclaresOnOneClientOnly(Part),

    // C17
    StaysBusyWhenDropped(Op),
    DroppedSubscribeStays,
    DroppedAcquireCannotBeUndone,
    DroppedAcquireArrivesLate,
    DroppedRenewalLosesTheHold,

    // C18
    FirstComesWhoAsksFirst,
    TryingOvertakes,
    LastComeFirstServed,
    AskingAgainGoesToTheEnd,
    TryingTakesAPlace,
    KeepsThePlaceOfWhoEntered,
    QueueEndsWithTheLease,
    OneQueueForAllNames,
    RefusesAFreeLockWithoutATime,

    // C19
    PlacesNeverLapse,
    PlacesLapseEarly,
    AskingAgainDoesNotKeepThePlace,
    LapsedPlacesComeBack,
    KeepsLapsedPlaces,

    // C20
    GivingUpKeepsThePlace,
    GivingUpIsARelease,
    GivingUpEndsTheHold,
    GivingUpEmptiesTheQueue,
    GivingUpWakesNobody,
    GivenUpPlacesComeBack,
    FairReleaseWakesNobody,
    ExclusiveEndWakesNoQueue,
    FairForcedReleaseWakesNobody,
    WakesTheLastOfTheQueue,

    // C21
    GrantsAsAnotherKind,
    CallsAnotherKindHeld,
    CallsAnotherKindAnotherError,
    TakesAnotherKindAndFails,
    AnotherKindEndsTheHold,
    StaysOfItsKindForEver,
    KindOutlivesTheLease,
    TakesEachModeForAKind,
    ResizedIsFreeForAll,
    ResizesWhatIsALock,
    ResizesWhatIsSet,
    TakesWhatIsSaidForSet,
    SaysThatItResized,
    GrowthSkipsTheKind,
    SetsCountsOfLocks,

    // C22, and others of read-write locks
    OneReaderAtATime,
    ReadersIgnoreWriters,
    WritersShare,
    WritersIgnoreReaders,
    OneReleaseEndsAllReaders,
    AnybodyReleasesReaders,
    AnybodyRenewsReaders,
    CountsRepeatedReaders,
    ReadersShareACount,
    GrowthOfAReaderGrants,
    RenewalOfAReaderShortens,
    RepetitionOfAReaderShortens,
    NamedReadersPileUp,
    TakeoverEndsAllReaders,
    RefusesTheOwnersNextWriter,
    WritersHaveTokensOfTheirOwn,
    ReleaseOfAReaderWakesNobody,
    ReleaseOfAWriterWakesNobody,
    ForceEndsOneHold,
    ForceKeepsReaders,
    ReportsOneHolder,
    ReportsReadersAsWriters,

    // C23
    RefusesToReadWithin,
    WriteEndsWithItsReader,
    StaysAWriterWhileItReads,
    ReaderWithinOpensTheLock,
    WakesOnlyWhenFree,
    AnyWithinLetsIn,
    ReaderTakesOverTheWriter,

    // C24
    LastLeaseIsForAll,
    RenewalIsForAll,
    FirstLeaseEndsAll,
    TellsTheFirstEnd,
    TellsTheNewestEnd,

    // C25
    WaitingWritersKeepNobodyOut,
    WaitingWritersStopAllReaders,
    WaitingWritersStopTakeovers,
    WaitingWritersStopReadersWithin,
    WritersInKeepReadersOut,
    WritersThatGaveUpKeepReadersOut,
    WritersThatGiveUpWakeNobody,
    WaitingWritersNeverLapse,
    WaitingWritersLapseEarly,
    AskingAgainDoesNotKeepReadersOut,
    TryingKeepsReadersOut,
    OneWriterKeepsReadersOut,
    GrowthOfAWaitingWriterLetsReadersIn,
    WritersBehindWritersKeepReadersOut,
    ReportsNoWaitingWriter,

    // C26, and others of permits
    GrantsPermitsWithoutEnd,
    CountsHoldsForPermits,
    GivesWhatIsLeft,
    EachSaysHowManyPermits,
    PermitsOfAnOwnerAreOneHold,
    RepeatedPermitsCount,
    RefusesRepeatedPermits,
    ReleaseOfPermitsWakesNobody,
    ReportsNoPermits,

    // C27
    AnybodyRenewsPermits,
    AnybodyReleasesPermits,
    EndedPermitsStayTaken,
    OneEndGivesBackAllPermits,
    TellsWhenTheLastPermitsComeBack,

    // C28
    CallsTooManyHeld,
    AllPermitsAreTooMany,
    CallsTakenPermitsTooMany,
    MeasuresTooManyByWhatIsSaid,

    // C29
    ResizingDoesNothing,
    WhatIsSaidCountsMore,
    ForgetsTheSizeWhenFree,
    ResizingWakesNobody,
    ResizingEndsHolds,
    ResizingCountsWhatIsFree,
    ResizingRenews,

    // C30
    SetsAClosedLatch,
    SetsAHigherCount,
    LooksThenSets,
    SaysThatItWasSet,
    RefusesARepeatedSet,
    SetsAgainWhenRepeated,
    ForgetsARefusedSet,
    IsSetOnceForAll,
    CutsCountsToSixteenBits,
    OneLatchForAllNames,
    KnowsIdsOfItsOwnClientOnly,

    // C31
    CountsWhatIsRepeated,
    CountsByTwo,
    CountsBelowZero,
    CountingClosesAnOpenLatch,
    OpensAtOne,
    NeverOpensAtZero,
    LooksThenCounts,
    LooksForTheIdThenCounts,
    KnowsTheIdThenCounts,
    AnswersTheFormerCount,
    OpeningForgetsTheIds,
    OpenCountsDown,
    OpenAnswersNothing,
    LookingCounts,
    KeepsOpenLatches,
    KeepsLatchesAskedFor,
    KeepsTheIdsOfCounts,

    // C32
    LastCountWakesNobody,
    OpenWakesNobody,

    // C33
    NotifiesTheLast,
    NotifiesOneOfMany,
    NotifiesEverybody,
    TakesTheGreatestCountForNone,
    NotifiedWaitersStayIn,
    AnswersHowManyWereWanted,
    KeepsNotifications,
    JoiningAgainGoesToTheEnd,
    JoiningAgainTakesASecondPlace,
    StayingGoesToTheEnd,
    NotifiesOnceAWaiter,
    LooksThenNotifies,
    LooksThenJoins,
    NotifyingFreesTheLock,
    ConditionsEndWithTheHold,
    OneConditionALock,
    OneConditionAName,
    PutsAColonBetweenNames,

    // C34
    WaitersNeverLapse,
    WaitersLapseEarly,
    WaitersEndTogether,
    JoiningAgainIsIgnored,
    StayingDoesNothing,
    StayingOnlyLengthens,
    StayingAddsUp,
    StayingMakesAPlace,
    StayingIsAlwaysPossible,
    LapsedWaitersStay,
    LapsedWaitersAreNotified,
    KeepsLapsedWaiters,
    KeepsConditions,

    // C35
    LeavingKeepsThePlace,
    LeavingEmptiesTheQueue,
    LeavingSaysThatItWasIn,
    LeavingSaysThatItWasOut,
    LeavingPassesOnAPlace,
    LeavingPassesOnUnasked,
    LeavingPassesNothingOn,
    PassesOnToEverybody,
    PassesOnToTheLast,
    KeepsWhatIsPassedOnToNobody,
    DroppedJoinArrivesLate,

    // C36
    NotificationWakesNobody,
    NotificationWakesTheFirst,
    PassingOnWakesNobody,

    // C41
    ReportsNoSharedNames,
    ReportsNoQueues,
    ReportsNoNumbers,
    ReportsNoLatches,
    ReportsNamesOfItsOwnClientOnly,
    NeverForgetsANameItSaw,
    ReportsNamesThatHaveEnded,
    EscapesNames,
    WalksOnePageOnly,
    WalksByOffset,
    TakesEveryCursor,

    // C42
    WalkHoldsUpOthers,

    // C43
    EscapesRecords,
    TrimsRecords,
    CutsRecords,
    ReportsItsOwnRecordsOnly,
    KeepsTheFirstRecord,
    RecordsNeverLapse,
    RecordsLapseEarly,
    KeepsTheFirstLifetime,
    OnlyLengthensLifetimes,
    TakesOutTheRecordToReplaceIt,
    KeepsRemovedRecords,
    RemovesAllRecords,
    OneRecordForAll,

    // C44
    RecordsTakeLocks,
    RemovalReleasesLocks,
    ReleaseRemovesTheRecord,
    ForceRemovesTheRecord,
    ReportsRecordsAsNames,

    // C45
    TellsOfNothingStored,
    TellsOfAllThatIsStored,
    EndsWhatItLooksAt,
    CountsNoWaiters,

    // C46
    CrashLosesHolds,
    CrashLosesSharedHolds,
    CrashLosesRenewals,
    CrashLosesGrowth,
    CrashLosesTokens,
    CrashLosesTheLeases,
    CrashLosesDirectGrants,
    CrashLosesRaisedTokens,
    CrashLosesNumbersOfPermits,
    CrashLosesLatches,
    /// The contract allows it.
    CrashLosesReleases,

    // C47
    CallsTheInterruptedNotApplied,

    // Others with broken connections
    HoldsEndWithTheConnection,
    SubscriptionsEndWithTheConnection,
    SubscriptionsHearOfOneInterruption,
    LateRequestsIgnoreTheirUndo,
    LendsAnyConnection,

    // Long ids and owners
    CutsLongIds,
    CutsLongOwners,
}
