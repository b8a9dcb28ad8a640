-- Fencing in the transaction that writes the data.

-- Lets a transaction go on only if no later holder of the lock has come: neither one whose
-- transaction has called this function, nor one that holds the lock. Of two transactions that call
-- it for one name at the same time, the second waits for the first to end.
--
-- Raises the error LC001 if `p_token` is old.
CREATE FUNCTION lockcore.fence(p_name text, p_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lockcore.fence AS known VALUES (p_name, p_token)
        ON CONFLICT (name) DO UPDATE SET token = excluded.token
            WHERE known.token <= excluded.token;
    IF NOT FOUND OR EXISTS (
        -- The reader beside a writer has a later token, and is no successor.
        SELECT FROM lockcore.hold
            WHERE name = p_name AND token > p_token AND mode IN (1, 2, 4)
    ) THEN
        RAISE EXCEPTION 'the token % of lock "%" is old: somebody else has held it since',
            p_token, p_name
            USING ERRCODE = 'LC001',
                HINT = 'Stop the work that the lock protected, and acquire it again.';
    END IF;
END $$;
