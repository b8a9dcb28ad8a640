-- What is stored. Times are those of the server's clock. Rows whose `until` has passed count as
-- absent; `sweep` deletes them.
--
-- These files are written for the schema `lockcore`. For another one, each `lockcore.` is replaced.
--
-- Each function that clients call has a search path of its own. With that of the session, an
-- operator that somebody else has created in another schema could be taken for one of PostgreSQL's,
-- and would run with the rights of whoever uses a lock. The functions that only these call run in
-- their path: to set it again for each would cost more than most of them do.
--
-- Kinds: 1 exclusive and fair locks, 2 read-write locks, 3 permits, 4 plain permits, 5 latches.
-- Modes: 1 exclusive, 2 fair, 3 read, 4 write, 5 permits, 6 plain permits.
--
-- Rows are updated often and in place: no index on what changes, and room on each page for the new
-- version. Autovacuum counts rows and not shares of the table, because the tables are small.

CREATE TABLE lockcore.hold (
    name text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    kind integer NOT NULL,
    mode integer NOT NULL,
    count bigint NOT NULL,
    permits bigint NOT NULL,
    most bigint NOT NULL,
    token bigint NOT NULL,
    until timestamptz NOT NULL,
    -- Whether a writer may go on under this read hold: the next reader beside it has to pass the
    -- fence.
    is_writers boolean NOT NULL DEFAULT false,
    PRIMARY KEY (name, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The queue of a fair lock, or the writers that keep new readers out. `request` is the number of
-- the last request, if that may be granted by a release.
CREATE TABLE lockcore.place (
    name text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    kind integer NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    request bigint,
    until timestamptz NOT NULL,
    PRIMARY KEY (name, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Holds and waiters of conditions that are not to come about any more, whatever request for them is
-- still on its way.
CREATE TABLE lockcore.undone (
    name text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (name, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The numbers of permits that were set.
CREATE TABLE lockcore.semaphore (
    name text COLLATE "C" PRIMARY KEY,
    permits bigint NOT NULL
);

-- Latches that are closed.
CREATE TABLE lockcore.latch (
    name text COLLATE "C" PRIMARY KEY,
    count bigint NOT NULL
);

-- What requests for a latch were answered, for their repetitions.
CREATE TABLE lockcore.reply (
    name text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    answer bigint NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (name, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The waiters of conditions, in the order of `number`.
CREATE TABLE lockcore.waiter (
    name text COLLATE "C" NOT NULL,
    condition text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    until timestamptz NOT NULL,
    PRIMARY KEY (name, condition, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The least token with which the data behind each name may still be written; see `fence`.
CREATE TABLE lockcore.fence (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- When rows that have ended were deleted last. This table and `server` have one row each, and a key:
-- PostgreSQL refuses to update a published table without one.
CREATE TABLE lockcore.swept (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at timestamptz NOT NULL
);
INSERT INTO lockcore.swept (at) VALUES ('-infinity');

-- The last token of each name whose tokens were proposed, as long as the sequence may be behind it.
CREATE TABLE lockcore.proposed (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Each number stands for 64 tokens, so that most grants of several tokens draw few of them.
CREATE SEQUENCE lockcore.token AS bigint INCREMENT BY 64;

-- Where the sequence was raised last, and to what: see `follow_server`.
CREATE TABLE lockcore.server (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    started timestamptz NOT NULL,
    database oid NOT NULL,
    sequence oid NOT NULL,
    -- The file of this table.
    file oid NOT NULL,
    raised bigint NOT NULL
);
INSERT INTO lockcore.server VALUES (true, '-infinity', 0, 0, 0, 0);
