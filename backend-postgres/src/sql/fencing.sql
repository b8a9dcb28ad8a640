-- Fencing in the transaction that writes the data.
--
-- A fenced transaction and a grant that takes the lock over exclude each other, by a lock of class
-- 1819239277 for each name, which both keep until they end: shared by `fence`, exclusive for
-- the grant. So whoever is granted the lock finds what was written under the one before it, and
-- a check finds every grant that was there first. A reader beside readers takes nothing over: its
-- grant does not wait for their fenced transactions.
--
-- Nobody waits in a circle. Requests take what they need in this order: the name (`enter`), its
-- fence, the row of its proposed tokens, the lock around the sequence, and then rows of the name,
-- which only those who have the name write, and the sweeper, which waits for nobody. A fenced
-- transaction waits for fences and for their rows, and for nothing else of this schema. A row of a
-- fence is only waited for by those who have the fence. A release, which must not wait for a fence
-- that its own client keeps, does not (`grant_directly`). A grant waits for a moment only: the
-- transaction may belong to a client that is gone, and would keep up all who ask for the name.

-- Takes the fence for a grant, and answers whether that was possible. The name was entered. Fenced
-- transactions are short as a rule, and are waited for, unless others wait for the name meanwhile.
CREATE FUNCTION lockcore.close_fence(p_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_try_advisory_xact_lock(1819239277, hashtext('lockcore.' || p_name)) THEN
        RETURN true;
    END IF;
    IF EXISTS (
        SELECT FROM pg_locks AS waiting JOIN pg_locks AS own
            USING (locktype, database, classid, objid, objsubid)
            WHERE own.pid = pg_backend_pid() AND own.granted AND own.locktype = 'advisory'
                AND own.classid = 1819239275 AND NOT waiting.granted
    ) THEN
        RETURN false;
    END IF;
    BEGIN
        PERFORM lockcore.limit_wait(100);
        PERFORM pg_advisory_xact_lock(1819239277, hashtext('lockcore.' || p_name));
        PERFORM lockcore.limit_wait();
        RETURN true;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
END $$;

-- Takes the fence for a transaction that writes data.
--
-- The server ends the session if it then does nothing for `p_idle` milliseconds before the end of
-- the transaction, or for as long as it was told before if that is less: the client may be gone,
-- and nobody would get the lock. With 0, that stays as it is.
CREATE FUNCTION lockcore.share_fence(p_name text, p_idle integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_idle numeric := 1000 * extract(
        epoch FROM current_setting('idle_in_transaction_session_timeout')::interval
    );
BEGIN
    -- In the others, what is read next can be older than the lock that is taken here.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a fence needs the isolation level READ COMMITTED, not %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'LC002';
    END IF;
    IF p_idle > 0 AND v_idle NOT BETWEEN 1 AND p_idle THEN
        PERFORM set_config('idle_in_transaction_session_timeout', p_idle || 'ms', true);
    END IF;
    PERFORM pg_advisory_xact_lock_shared(1819239277, hashtext('lockcore.' || p_name));
END $$;

-- Turns away, from the end of this transaction on, whoever has an earlier token than `p_token`.
-- The row is there from the first check of the name on, or since a named writer that had a reader
-- beside it was replaced.
CREATE FUNCTION lockcore.pass_fence(p_name text, p_token bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE lockcore.fence SET token = p_token WHERE name = p_name AND token < p_token
$$;

-- Lets a transaction go on only if nobody has held the lock since the holder of `p_token`, and lets
-- nobody have it before the transaction ends, except readers beside readers. Of two transactions
-- that call it for one name at the same time, the second waits for the first to end.
--
-- Raises the error LC001 if `p_token` is old. Before the first check of a name, nobody has noted
-- who has held it: then only a hold that has not ended shows that the token is not old. A permit
-- does not show it, because nobody takes it over who is granted the next one.
CREATE FUNCTION lockcore.fence(p_name text, p_token bigint, p_idle integer DEFAULT 30000)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- The name may have been that of a lock before.
    v_is_semaphore boolean;
BEGIN
    PERFORM lockcore.share_fence(p_name, p_idle);
    v_is_semaphore := EXISTS (
        SELECT FROM lockcore.hold
            WHERE name = p_name AND kind IN (3, 4)
    );
    UPDATE lockcore.fence SET token = p_token
        WHERE name = p_name AND token <= p_token AND NOT v_is_semaphore;
    IF FOUND THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM lockcore.fence WHERE name = p_name) AND EXISTS (
        -- Whoever takes the lock over deletes it.
        SELECT FROM lockcore.hold
            WHERE name = p_name AND kind IN (1, 2) AND token <= p_token
                AND until > clock_timestamp()
    ) THEN
        INSERT INTO lockcore.fence AS known VALUES (p_name, p_token)
            ON CONFLICT (name) DO UPDATE SET token = excluded.token
                WHERE known.token <= excluded.token;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF v_is_semaphore AND NOT EXISTS (
        SELECT FROM lockcore.fence WHERE name = p_name AND token > p_token
    ) THEN
        RAISE EXCEPTION '"%" is a semaphore, and there is no fence for its permits', p_name
            USING ERRCODE = 'feature_not_supported';
    END IF;
    RAISE EXCEPTION 'the token % of lock "%" is old: its hold has ended, or somebody else has held '
        'the lock since', p_token, p_name
        USING ERRCODE = 'LC001',
            HINT = 'Stop the work that the lock protected, and acquire it again.';
END $$;

-- Deletes what is known about the holders of a lock, together with the data behind it, and answers
-- whether nothing is known any more. It waits for the fenced transactions before it, and nobody is
-- granted the lock before this one ends, except readers beside readers.
CREATE FUNCTION lockcore.forget_fence(p_name text, p_idle integer DEFAULT 30000) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lockcore.share_fence(p_name, p_idle);
    -- A first check waits for the row that another one has inserted, and so does this. A check that
    -- comes after it waits for this row, also if there was none before.
    INSERT INTO lockcore.fence AS known VALUES (p_name, 0)
        ON CONFLICT (name) DO UPDATE SET token = known.token;
    -- A reader vouches for every later token in a first check. One that is older than the fence, as
    -- beside a writer that was replaced, would let in whom the fence turns away. One that seems to
    -- have ended may have a renewal that is being committed.
    DELETE FROM lockcore.fence AS known WHERE name = p_name AND NOT EXISTS (
        SELECT FROM lockcore.hold AS held
            WHERE held.name = p_name AND held.mode = 3 AND held.token < known.token
    );
    RETURN FOUND;
END $$;
