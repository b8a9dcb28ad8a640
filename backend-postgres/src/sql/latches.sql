-- Latches. Each function answers 0 and a number, or 4 and the kind that the name is in use as.

-- Carries a request out once. Its repetitions get the same answer for two minutes. A client repeats
-- it for less than a minute, and what is more than 30 s on its way is late and answered 6 and the
-- clock, also if the client reckons wrong by as much as 30 s.
--
-- `p_count` is the count to set, or NULL to count down.
CREATE FUNCTION lockcore.change_latch(
    p_name text, p_count bigint, p_id text, p_channel text, p_asked bigint,
    OUT answer integer, OUT number bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter(p_name);
BEGIN
    -- At first: the request may have ended the latch, and the name may be in use as another kind.
    answer := 0;
    SELECT reply.answer INTO number FROM lockcore.reply
        WHERE name = p_name AND id = p_id AND until > v_now;
    IF FOUND THEN
        RETURN;
    END IF;
    number := lockcore.used_as(p_name, v_now);
    IF number <> 5 THEN
        answer := 4;
        RETURN;
    END IF;
    IF lockcore.is_late(p_asked, v_now) THEN
        answer := 6;
        number := lockcore.clock();
        RETURN;
    END IF;
    IF p_count IS NOT NULL THEN
        INSERT INTO lockcore.latch VALUES (p_name, p_count) ON CONFLICT (name) DO NOTHING;
        number := CASE WHEN FOUND THEN 1 ELSE 0 END;
    ELSE
        UPDATE lockcore.latch SET count = count - 1 WHERE name = p_name RETURNING count INTO number;
        IF number = 0 THEN
            DELETE FROM lockcore.latch WHERE name = p_name;
            PERFORM pg_notify(p_channel, 'all');
        END IF;
        number := coalesce(number, 0);
    END IF;
    INSERT INTO lockcore.reply VALUES (p_name, p_id, number, v_now + interval '2 minutes')
        ON CONFLICT (name, id) DO UPDATE SET answer = excluded.answer, until = excluded.until;
END $$;

-- The count that is left, and if `p_opens`, opens the latch.
CREATE FUNCTION lockcore.read_latch(
    p_name text, p_opens boolean, p_channel text, OUT answer integer, OUT number bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lockcore.limit_wait();
    v_now := CASE WHEN p_opens THEN lockcore.enter(p_name) ELSE clock_timestamp() END;
    number := lockcore.used_as(p_name, v_now);
    IF number <> 5 THEN
        answer := 4;
        RETURN;
    END IF;
    answer := 0;
    IF p_opens THEN
        DELETE FROM lockcore.latch WHERE name = p_name RETURNING count INTO number;
        PERFORM pg_notify(p_channel, 'all');
    ELSE
        SELECT count INTO number FROM lockcore.latch WHERE name = p_name;
    END IF;
    number := coalesce(number, 0);
END $$;
