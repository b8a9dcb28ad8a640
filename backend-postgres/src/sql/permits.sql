-- Semaphores.

-- How many permits there are, and how many of them are free: the number that was set, or what the
-- first of those who hold any has said, or else what is said now.
CREATE FUNCTION lockcore.permits(
    p_name text, p_most bigint, p_now timestamptz, OUT total bigint, OUT free bigint
)
LANGUAGE sql AS $$
    WITH taken AS (
        SELECT sum(permits) AS permits, min(most) AS most
            FROM lockcore.hold WHERE name = p_name AND until > p_now
    ), there AS (
        SELECT coalesce(
            (SELECT permits FROM lockcore.semaphore WHERE name = p_name), taken.most, p_most
        ) AS total, coalesce(taken.permits, 0)::bigint AS taken FROM taken
    )
    SELECT total, greatest(total - taken, 0) FROM there
$$;

-- Answers: 0 the number is set, 1 it was set before and stays, 4 the name is in use as kind `kind`.
CREATE FUNCTION lockcore.resize(
    p_name text, p_permits bigint, p_only_if_unset boolean, p_channel text,
    OUT answer integer, OUT kind bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter(p_name);
BEGIN
    kind := lockcore.used_as(p_name, v_now);
    IF kind <> 3 THEN
        answer := 4;
        RETURN;
    END IF;
    IF p_only_if_unset AND EXISTS (SELECT FROM lockcore.semaphore WHERE name = p_name) THEN
        answer := 1;
        RETURN;
    END IF;
    INSERT INTO lockcore.semaphore VALUES (p_name, p_permits)
        ON CONFLICT (name) DO UPDATE SET permits = excluded.permits;
    PERFORM lockcore.wake(p_name, v_now, p_channel);
    answer := 0;
END $$;
